#include "common/rendezvous/rank_environment.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace tandem::comm {
namespace {

using ::testing::HasSubstr;

RankEnvironment Read(const EnvironmentVariables& variables) {
  const auto read = ReadRankEnvironment(variables);
  EXPECT_TRUE(read.ok()) << read.status();
  return read.value_or(RankEnvironment());
}

std::string ProblemOf(const EnvironmentVariables& variables) {
  return std::string(ReadRankEnvironment(variables).status().message());
}

void ExpectRank(const RankEnvironment& found, const char* source, int rank, int world_size,
                int local_rank, const std::string& master) {
  EXPECT_EQ(found.source, source);
  EXPECT_EQ(found.rank, rank);
  EXPECT_EQ(found.world_size, world_size);
  EXPECT_EQ(found.local_rank, local_rank);
  EXPECT_EQ(found.master_host + ":" + std::to_string(found.master_port), master);
}

TEST(RankEnvironmentTest, WithoutALauncherThereIsOneRank) {
  ExpectRank(Read({}), "none", 0, 1, 0, "127.0.0.1:29500");
  // JobSet also numbers the pods of single-process jobs, and a batch script has a SLURM_PROCID.
  ExpectRank(Read({{"JOB_COMPLETION_INDEX", "0"}}), "none", 0, 1, 0, "127.0.0.1:29500");
  ExpectRank(Read({{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "8"}}), "none", 0, 1, 0,
             "127.0.0.1:29500");
}

TEST(RankEnvironmentTest, TorchrunSaysEverything) {
  const RankEnvironment found = Read({{"RANK", "5"},
                                      {"WORLD_SIZE", "8"},
                                      {"LOCAL_RANK", "1"},
                                      {"LOCAL_WORLD_SIZE", "4"},
                                      {"MASTER_ADDR", "node-0"},
                                      {"MASTER_PORT", "4711"},
                                      {"TORCHELASTIC_RUN_ID", "abc"},
                                      {"TORCHELASTIC_RESTART_COUNT", "2"}});
  ExpectRank(found, "torchrun", 5, 8, 1, "node-0:4711");
  EXPECT_EQ(found.launch_id, "abc");
  EXPECT_EQ(found.restart, 2);
}

TEST(RankEnvironmentTest, SlurmRanksMeetAtTheFirstHostOfTheStepOnAPortOfTheJob) {
  EnvironmentVariables variables = {
      {"SLURM_PROCID", "3"},        {"SLURM_NTASKS", "4"},
      {"SLURM_LOCALID", "1"},       {"SLURM_JOB_ID", "4123"},
      {"SLURM_STEP_ID", "1"},       {"SLURM_STEP_NODELIST", "gpu[07-08]"},
      {"SLURM_RESTART_COUNT", "1"}, {"SLURM_STEP_TASKS_PER_NODE", "2(x2)"}};
  const RankEnvironment found = Read(variables);
  EXPECT_EQ(found.local_world_size, 2);
  ExpectRank(found, "Slurm", 3, 4, 1, "gpu07:61124");  // 61000 + (4123 + 1) mod 4000
  EXPECT_EQ(found.launch_id, "4123.1");
  EXPECT_EQ(found.restart, 1);
  variables["MASTER_ADDR"] = "head";
  variables["MASTER_PORT"] = "5000";
  ExpectRank(Read(variables), "Slurm", 3, 4, 1, "head:5000");
}

TEST(RankEnvironmentTest, AStepOfFewerTasksThanItsJobHasThatManyRanks) {
  ExpectRank(Read({{"SLURM_PROCID", "1"},
                   {"SLURM_NTASKS", "8"},
                   {"SLURM_STEP_NUM_TASKS", "2"},
                   {"SLURM_STEP_ID", "0"},
                   {"SLURM_STEP_NODELIST", "a,b"}}),
             "Slurm", 1, 2, 0, "a:61000");
}

TEST(RankEnvironmentTest, AnInteractiveStepHasTheLargestNumbersThereAre) {
  const RankEnvironment found = Read({{"SLURM_PROCID", "1"},
                                      {"SLURM_NTASKS", "2"},
                                      {"SLURM_JOB_ID", "4123"},
                                      {"SLURM_STEP_ID", "4294967290"},
                                      {"SLURM_STEP_NODELIST", "a"}});
  ExpectRank(found, "Slurm", 1, 2, 0, "a:64413");  // 61000 + (4123 + 4294967290) mod 4000
  EXPECT_EQ(found.launch_id, "4123.4294967290");
}

TEST(RankEnvironmentTest, PodsOfAJobSetAreNumberedByTheirIndex) {
  const RankEnvironment found = Read({{"JOB_COMPLETION_INDEX", "2"},
                                      {"WORLD_SIZE", "4"},
                                      {"JOBSET_COORDINATOR", "demo-trainer-0-0.demo"},
                                      {"JOBSET_RESTART_ATTEMPT", "3"}});
  ExpectRank(found, "JobSet", 2, 4, 0, "demo-trainer-0-0.demo:29500");
  EXPECT_EQ(found.restart, 3);
}

TEST(RankEnvironmentTest, KubeflowLwsAndOpenMpiAreUnderstood) {
  ExpectRank(Read({{"PET_NODE_RANK", "1"},
                   {"PET_NNODES", "2"},
                   {"PET_MASTER_ADDR", "job-0"},
                   {"PET_MASTER_PORT", "29400"}}),
             "Kubeflow", 1, 2, 0, "job-0:29400");
  ExpectRank(Read({{"LWS_WORKER_INDEX", "1"},
                   {"LWS_GROUP_SIZE", "3"},
                   {"LWS_LEADER_ADDRESS", "lws-0.svc"}}),
             "LWS", 1, 3, 0, "lws-0.svc:29500");
  ExpectRank(Read({{"OMPI_COMM_WORLD_RANK", "1"},
                   {"OMPI_COMM_WORLD_SIZE", "2"},
                   {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
                   {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"}}),
             "Open MPI", 1, 2, 1, "127.0.0.1:29500");
}

TEST(RankEnvironmentTest, VolcanoSaysWhatTorchrunDoesWithoutLocalRanks) {
  const RankEnvironment found = Read({{"RANK", "2"},
                                      {"WORLD_SIZE", "3"},
                                      {"MASTER_ADDR", "job-master-0.job"},
                                      {"MASTER_PORT", "23456"},
                                      {"VC_TASK_INDEX", "1"}});
  ExpectRank(found, "torchrun", 2, 3, 0, "job-master-0.job:23456");
  EXPECT_EQ(found.local_world_size, 1);
}

TEST(RankEnvironmentTest, WhereRankZeroIsMayBeSaidBesideEveryLauncher) {
  const EnvironmentVariables master = {{"MASTER_ADDR", "head"}, {"MASTER_PORT", "5000"}};
  const auto with_master = [&](EnvironmentVariables variables) {
    variables.insert(master.begin(), master.end());
    return Read(variables);
  };
  ExpectRank(with_master(
                 {{"JOB_COMPLETION_INDEX", "1"}, {"WORLD_SIZE", "2"}, {"JOBSET_COORDINATOR", "a"}}),
             "JobSet", 1, 2, 0, "head:5000");
  ExpectRank(with_master(
                 {{"LWS_WORKER_INDEX", "1"}, {"LWS_GROUP_SIZE", "2"}, {"LWS_LEADER_ADDRESS", "a"}}),
             "LWS", 1, 2, 0, "head:5000");
  ExpectRank(with_master({{"PET_NODE_RANK", "1"},
                          {"PET_NNODES", "2"},
                          {"PET_MASTER_ADDR", "a"},
                          {"PET_MASTER_PORT", "1"}}),
             "Kubeflow", 1, 2, 0, "head:5000");
  // With two hosts, Open MPI sets no variable that says where rank 0 is.
  EnvironmentVariables hosts = {{"OMPI_COMM_WORLD_RANK", "1"},
                                {"OMPI_COMM_WORLD_SIZE", "2"},
                                {"OMPI_COMM_WORLD_LOCAL_RANK", "0"},
                                {"OMPI_COMM_WORLD_LOCAL_SIZE", "1"}};
  EXPECT_THAT(ProblemOf(hosts), HasSubstr("Open MPI sets them: MASTER_ADDR is not set"));
  ExpectRank(with_master(hosts), "Open MPI", 1, 2, 0, "head:5000");
}

TEST(RankEnvironmentTest, EveryPairOfLaunchersMustAgree) {
  const std::vector<std::pair<std::string, EnvironmentVariables>> second_of_two = {
      {"torchrun", {{"RANK", "1"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "a"}}},
      {"Kubeflow", {{"PET_NODE_RANK", "1"}, {"PET_NNODES", "2"}, {"PET_MASTER_ADDR", "a"}}},
      {"Slurm",
       {{"SLURM_PROCID", "1"},
        {"SLURM_NTASKS", "2"},
        {"SLURM_STEP_ID", "0"},
        {"SLURM_STEP_NODELIST", "a"}}},
      {"LWS", {{"LWS_WORKER_INDEX", "1"}, {"LWS_GROUP_SIZE", "2"}, {"LWS_LEADER_ADDRESS", "a"}}},
      {"Open MPI",
       {{"OMPI_COMM_WORLD_RANK", "1"},
        {"OMPI_COMM_WORLD_SIZE", "2"},
        {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"}}}};
  for (size_t first = 0; first < second_of_two.size(); ++first) {
    for (size_t other = first + 1; other < second_of_two.size(); ++other) {
      EnvironmentVariables both = second_of_two[first].second;
      both.insert(second_of_two[other].second.begin(), second_of_two[other].second.end());
      EXPECT_EQ(Read(both).source, second_of_two[first].first);
      for (auto& [name, value] : both) {
        const bool is_others = second_of_two[other].second.contains(name);
        if (is_others && value == "1") value = "0";
      }
      EXPECT_THAT(ProblemOf(both), HasSubstr(second_of_two[first].first + " says 1 of 2, " +
                                             second_of_two[other].first + " says 0 of 2"));
    }
  }
}

TEST(RankEnvironmentTest, TorchrunUnderSlurmIsTorchrunsWord) {
  ExpectRank(Read({{"RANK", "5"},
                   {"WORLD_SIZE", "8"},
                   {"LOCAL_RANK", "1"},
                   {"MASTER_ADDR", "a"},
                   {"TORCHELASTIC_RUN_ID", "x"},
                   {"SLURM_PROCID", "1"},
                   {"SLURM_NTASKS", "2"},
                   {"SLURM_STEP_ID", "0"},
                   {"SLURM_STEP_NODELIST", "a"}}),
             "torchrun", 5, 8, 1, "a:29500");
}

TEST(RankEnvironmentTest, RanksThatAreSetTwiceAndDifferAreRefused) {
  const std::string problem = ProblemOf({{"RANK", "0"},
                                         {"WORLD_SIZE", "1"},
                                         {"SLURM_PROCID", "1"},
                                         {"SLURM_NTASKS", "2"},
                                         {"SLURM_STEP_ID", "0"},
                                         {"SLURM_STEP_NODELIST", "a"}});
  EXPECT_THAT(problem, HasSubstr("torchrun says 0 of 1, Slurm says 1 of 2"));
  EXPECT_THAT(problem, HasSubstr("unset"));
}

TEST(RankEnvironmentTest, AMissingOrWrongVariableIsNamed) {
  EXPECT_THAT(ProblemOf({{"RANK", "0"}}), HasSubstr("torchrun sets them: WORLD_SIZE is not set"));
  EXPECT_THAT(ProblemOf({{"RANK", "2"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "a"}}),
              HasSubstr("RANK=2: want a whole number from 0 to 1"));
  EXPECT_THAT(ProblemOf({{"RANK", "first"}, {"WORLD_SIZE", "2"}}), HasSubstr("RANK=first"));
  EXPECT_THAT(ProblemOf({{"RANK", "0"}, {"WORLD_SIZE", "2"}}), HasSubstr("MASTER_ADDR is not set"));
  EXPECT_THAT(ProblemOf({{"RANK", "0"}, {"WORLD_SIZE", "1"}, {"MASTER_PORT", "0"}}),
              HasSubstr("MASTER_PORT=0: want a whole number from 1 to 65535"));
  EXPECT_THAT(ProblemOf({{"PET_NODE_RANK", "0"},
                         {"PET_NNODES", "2"},
                         {"PET_NPROC_PER_NODE", "8"},
                         {"PET_MASTER_ADDR", "a"}}),
              HasSubstr("tandem ranks --per-node"));
}

TEST(FirstSlurmHostTest, NodeListsAreReadToTheirFirstHost) {
  EXPECT_EQ(*FirstSlurmHost("login1"), "login1");
  EXPECT_EQ(*FirstSlurmHost("a,b"), "a");
  EXPECT_EQ(*FirstSlurmHost("gpu[03-05,9],login1"), "gpu03");
  EXPECT_EQ(*FirstSlurmHost("rack[7,9]-gpu,x"), "rack7-gpu");
  EXPECT_FALSE(FirstSlurmHost("gpu[1-2").ok());
}

TEST(ProcessEnvironmentTest, HoldsTheVariablesOfThisProcess) {
  ASSERT_EQ(setenv("TANDEM_RANK_TEST", "a=b", 1), 0);
  EXPECT_EQ(ProcessEnvironment().at("TANDEM_RANK_TEST"), "a=b");
}

}  // namespace
}  // namespace tandem::comm
