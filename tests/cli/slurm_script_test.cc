#include "cli/cluster/slurm_script.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/status_matchers.h"

namespace tandem::cli {
namespace {

using ::tandem::testing::FailsWith;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr auto kInvalidScript = absl::StatusCode::kInvalidArgument;

SlurmLayout Layout(const LaunchOptions& launch, bool server_on_gpu, bool trainer_on_gpu) {
  const auto layout = PlanSlurmLayout(launch, server_on_gpu, trainer_on_gpu);
  EXPECT_TRUE(layout.ok()) << layout.status();
  return layout.value_or(SlurmLayout());
}

TEST(SlurmLayoutTest, OneNodeHoldsServersAndRanksBesideEachOther) {
  LaunchOptions launch = {.num_servers = 4, .num_ranks = 4};
  const SlurmLayout layout = Layout(launch, true, true);
  EXPECT_EQ(layout.num_nodes, 1);
  EXPECT_EQ(layout.gpus_per_node, 8);
  EXPECT_EQ(layout.cpus_per_node, 64);  // 8 CPUs each
  EXPECT_EQ(layout.servers_per_node, 4);
  EXPECT_EQ(layout.first_server_node, 0);
  EXPECT_EQ(Layout(launch, true, false).gpus_per_node, 4);
  EXPECT_EQ(Layout(launch, false, false).gpus_per_node, 0);
}

TEST(SlurmLayoutTest, ServersWithNodesOfTheirOwnStandBehindTheRanks) {
  LaunchOptions launch = {
      .num_servers = 6, .num_ranks = 16, .ranks_per_node = 8, .gpus_per_server = 2};
  launch.slurm.server_nodes = 2;
  launch.slurm.cpus_per_rank = 4;
  launch.slurm.cpus_per_server = 12;
  const SlurmLayout layout = Layout(launch, true, true);
  EXPECT_EQ(layout.rank_nodes, 2);
  EXPECT_EQ(layout.num_nodes, 4);
  EXPECT_EQ(layout.first_server_node, 2);
  EXPECT_EQ(layout.servers_per_node, 3);
  EXPECT_EQ(layout.gpus_per_node, 8);   // 8 ranks; 3 servers of 2
  EXPECT_EQ(layout.cpus_per_node, 36);  // 8 x 4; 3 x 12
}

TEST(SlurmLayoutTest, ServersThatShareTheNodesOfTheRanksAreSpreadOverThem) {
  const LaunchOptions launch = {.num_servers = 3, .num_ranks = 4, .ranks_per_node = 2};
  const SlurmLayout layout = Layout(launch, true, true);
  EXPECT_EQ(layout.num_nodes, 2);
  EXPECT_EQ(layout.servers_per_node, 2);
  EXPECT_EQ(layout.gpus_per_node, 4);
}

TEST(SlurmLayoutTest, RanksThatDoNotFillTheirNodesAndNodesWithoutAServerAreRefused) {
  EXPECT_THAT(
      PlanSlurmLayout({.num_ranks = 6, .ranks_per_node = 4}, false, false),
      FailsWith(kInvalidScript, "launch.num_ranks 6 is not a multiple of launch.ranks_per_node 4"));
  LaunchOptions launch = {.num_servers = 1};
  launch.slurm.server_nodes = 2;
  EXPECT_THAT(PlanSlurmLayout(launch, false, false),
              FailsWith(kInvalidScript, "a node would have none"));
}

SlurmJob Job() {
  SlurmJob job;
  job.launch = {.num_servers = 2, .num_ranks = 2};
  job.launch.stop_seconds = 99.5;
  job.launch.slurm.time = "04:00:00";
  job.layout = Layout(job.launch, true, true);
  job.run_name = "a run";
  job.directory = "/work/it's here";
  job.run_directory = "runs/a run";
  job.run_file = "trainer:\n  steps: 3\n";
  job.server_program = "/opt/bin/rollout_server";
  job.trainer_program = "/opt/bin/trainer";
  job.inputs = {"models/m", "data/t r.jsonl"};
  return job;
}

std::string Script(const SlurmJob& job) {
  const auto script = SlurmScript(job);
  EXPECT_TRUE(script.ok()) << script.status();
  return script.value_or("");
}

TEST(SlurmScriptTest, AsksForWhatANodeNeedsAndForASignalBeforeTheEnd) {
  SlurmJob job = Job();
  job.launch.slurm.gpu_type = "h100";
  job.launch.slurm.partition = "gpu,long";
  job.launch.slurm.exclusive = true;
  job.launch.slurm.sbatch = {"--constraint=\"a|b\""};
  const std::string script = Script(job);
  EXPECT_THAT(script, HasSubstr("#!/bin/bash\n"));
  EXPECT_THAT(script, HasSubstr("\n#SBATCH --job-name=a_run\n#SBATCH --nodes=1\n"
                                "#SBATCH --ntasks-per-node=1\n#SBATCH --cpus-per-task=32\n"
                                "#SBATCH --gres=gpu:h100:4\n#SBATCH --partition=gpu,long\n"
                                "#SBATCH --time=04:00:00\n#SBATCH --exclusive\n#SBATCH --requeue\n"
                                "#SBATCH --open-mode=append\n"
                                // 100 s to save and 30 to be queued again
                                "#SBATCH --signal=B:TERM@130\n#SBATCH --constraint=\"a|b\"\n\n"));
  EXPECT_THAT(script, HasSubstr("\nserver_step=(--nodes=1 --ntasks=1 "));
}

TEST(SlurmScriptTest, QuotesWhatIsNotOneWord) {
  EXPECT_EQ(ShellQuote("a/b-c.d"), "a/b-c.d");
  EXPECT_EQ(ShellQuote("--nodes=2"), "--nodes=2");
  EXPECT_EQ(ShellQuote("a=b"), "\"a=b\"");
  EXPECT_EQ(ShellQuote(""), "\"\"");
  EXPECT_EQ(ShellQuote(R"(it's $HOME, a "b", \ and `c`)"),
            R"("it's \$HOME, a \"b\", \\ and \`c\`")");
  const std::string script = Script(Job());
  EXPECT_THAT(script, HasSubstr("\ndirectory=\"/work/it's here\"\nrun_directory=\"runs/a run\"\n"));
  EXPECT_THAT(script, HasSubstr("\ninputs=(models/m \"data/t r.jsonl\")\n"));
}

TEST(SlurmScriptTest, HoldsTheRunFileWhateverItSays) {
  SlurmJob job = Job();
  EXPECT_THAT(Script(job),
              HasSubstr("<<'TANDEM_RUN_FILE'\ntrainer:\n  steps: 3\nTANDEM_RUN_FILE\n}\n"));
  job.run_file = "a: |\n  x\nTANDEM_RUN_FILE\n";
  EXPECT_THAT(Script(job), HasSubstr("<<'TANDEM_RUN_FILE_'\n"));
}

TEST(SlurmScriptTest, SetupLinesComeFirstAndAContainerIsNamedOnlyWhereThereIsOne) {
  SlurmJob job = Job();
  EXPECT_THAT(Script(job), HasSubstr("\ncontainer=()\n"));
  EXPECT_THAT(Script(job), Not(HasSubstr("--container-image")));
  job.launch.slurm.setup = {"module load gcc"};
  job.launch.slurm.container_image = "registry/x:1";
  job.launch.slurm.container_mounts = "/a b:/c";
  const std::string script = Script(job);
  EXPECT_LT(script.find("\nmodule load gcc\n"), script.find("\ndirectory="));
  EXPECT_THAT(script,
              HasSubstr("container=(--container-image=registry/x:1 "
                        "\"--container-workdir=/work/it's here\" \"--container-mounts=/a b:/c\")"));
}

TEST(SlurmScriptTest, EachServerHasAnObservePortOfItsOwn) {
  SlurmJob job = Job();
  EXPECT_THAT(Script(job), HasSubstr("\nobserve_host=\"\"\nobserve_port=0\n"));
  job.observe_listen = "[::]:9400";
  EXPECT_THAT(Script(job), HasSubstr("\nobserve_host=\"[::]\"\nobserve_port=9400\n"));
  EXPECT_THAT(Script(job), HasSubstr("server.observe_listen=$observe_host:$((observe_port + $1))"));
  job.observe_listen = "127.0.0.1:0";
  EXPECT_THAT(Script(job), HasSubstr("\nobserve_port=0\n"));
}

TEST(SlurmScriptTest, ValuesThatSlurmMightReadOtherwiseAreRefused) {
  SlurmJob job = Job();
  job.launch.slurm.account = "a b";
  EXPECT_THAT(SlurmScript(job), FailsWith(kInvalidScript, "launch.slurm.account is 'a b'"));
  job = Job();
  job.launch.slurm.gpu_type = "h100;x";
  EXPECT_THAT(SlurmScript(job), FailsWith(kInvalidScript, "launch.slurm.gpu_type is 'h100;x'"));
  job = Job();
  job.launch.slurm.sbatch = {"constraint=x"};
  EXPECT_THAT(SlurmScript(job),
              FailsWith(kInvalidScript, "'constraint=x' is not an option of sbatch"));
  job.launch.slurm.sbatch = {"--x\nrm -r runs"};
  EXPECT_THAT(SlurmScript(job), FailsWith(kInvalidScript, "is not an option"));
  job = Job();
  job.launch.slurm.setup = {"a\nb"};
  EXPECT_THAT(SlurmScript(job), FailsWith(kInvalidScript, "more than one line"));
}

}  // namespace
}  // namespace tandem::cli
