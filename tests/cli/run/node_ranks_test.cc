#include "cli/run/node_ranks.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/status_matchers.h"

namespace tandem::cli {
namespace {

using ::tandem::testing::FailsWith;
using ::testing::ElementsAre;

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;

NodeRanks Read(const comm::EnvironmentVariables& variables, const NodeFlags& flags) {
  const auto read = ReadNodeRanks(variables, flags);
  EXPECT_TRUE(read.ok()) << read.status();
  return read.value_or(NodeRanks());
}

void ExpectNode(const NodeRanks& found, const char* source, int node, int num_nodes,
                const std::string& master) {
  EXPECT_EQ(found.source, source);
  EXPECT_EQ(found.node, node);
  EXPECT_EQ(found.num_nodes, num_nodes);
  EXPECT_EQ(found.master_host + ":" + std::to_string(found.master_port), master);
}

TEST(NodeRanksTest, WithoutALauncherThisHostIsAllAndTakesAnyPort) {
  const NodeRanks found = Read({}, {.per_node = 4});
  ExpectNode(found, "none", 0, 1, "127.0.0.1:0");
  EXPECT_EQ(found.world_size(), 4);
}

TEST(NodeRanksTest, ARankIsToldWhatTorchrunWouldTellIt) {
  NodeRanks node = Read({{"JOB_COMPLETION_INDEX", "1"},
                         {"WORLD_SIZE", "2"},
                         {"JOBSET_COORDINATOR", "demo-trainer-0-0.demo"},
                         {"JOBSET_RESTART_ATTEMPT", "3"}},
                        {.per_node = 4});
  ExpectNode(node, "JobSet", 1, 2, "demo-trainer-0-0.demo:29500");
  EXPECT_THAT(RankVariables(node, 2),
              ElementsAre("RANK=6", "WORLD_SIZE=8", "LOCAL_RANK=2", "LOCAL_WORLD_SIZE=4",
                          "MASTER_ADDR=demo-trainer-0-0.demo", "MASTER_PORT=29500",
                          "TORCHELASTIC_RUN_ID=none", "TORCHELASTIC_RESTART_COUNT=3"));
}

TEST(NodeRanksTest, WhatARankIsToldGoesBeforeWhatTheNodesLauncherSays) {
  comm::EnvironmentVariables variables = {{"SLURM_PROCID", "1"},
                                          {"SLURM_NTASKS", "2"},
                                          {"SLURM_STEP_ID", "0"},
                                          {"SLURM_JOB_ID", "7"},
                                          {"SLURM_STEP_NODELIST", "gpu[1-2]"},
                                          {"SLURM_STEP_TASKS_PER_NODE", "1(x2)"}};
  const NodeRanks node = Read(variables, {.per_node = 8});
  ExpectNode(node, "Slurm", 1, 2, "gpu1:61007");
  for (const std::string& variable : RankVariables(node, 7)) {
    const size_t at = variable.find('=');
    variables[variable.substr(0, at)] = variable.substr(at + 1);
  }
  const auto rank = comm::ReadRankEnvironment(variables);
  ASSERT_TRUE(rank.ok()) << rank.status();
  EXPECT_EQ(rank->rank, 15);
  EXPECT_EQ(rank->world_size, 16);
  EXPECT_EQ(rank->local_rank, 7);
  EXPECT_EQ(rank->local_world_size, 8);
  EXPECT_EQ(rank->launch_id, "7.0");
}

TEST(NodeRanksTest, EveryLauncherOfOneProcessPerHostSaysWhichNodeThisIs) {
  ExpectNode(
      Read(
          {{"LWS_WORKER_INDEX", "1"}, {"LWS_GROUP_SIZE", "3"}, {"LWS_LEADER_ADDRESS", "lws-0.svc"}},
          {.per_node = 8}),
      "LWS", 1, 3, "lws-0.svc:29500");
  ExpectNode(Read({{"PET_NODE_RANK", "1"},
                   {"PET_NNODES", "2"},
                   {"PET_NPROC_PER_NODE", "8"},
                   {"PET_MASTER_ADDR", "job-0"},
                   {"PET_MASTER_PORT", "29400"}},
                  {.per_node = 8}),
             "Kubeflow", 1, 2, "job-0:29400");
  // Volcano.
  ExpectNode(Read({{"RANK", "1"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "a"}, {"MASTER_PORT", "5"}},
                  {.per_node = 8}),
             "torchrun", 1, 2, "a:5");
  ExpectNode(Read({{"OMPI_COMM_WORLD_RANK", "1"},
                   {"OMPI_COMM_WORLD_SIZE", "2"},
                   {"OMPI_COMM_WORLD_LOCAL_RANK", "0"},
                   {"OMPI_COMM_WORLD_LOCAL_SIZE", "1"},
                   {"MASTER_ADDR", "a"}},
                  {.per_node = 8}),
             "Open MPI", 1, 2, "a:29500");
}

TEST(NodeRanksTest, FlagsSayWhatNoLauncherDoes) {
  ExpectNode(Read({{"RANK", "5"}, {"WORLD_SIZE", "9"}},
                  {.per_node = 2, .nodes = 3, .node_rank = 2, .master = "head:4711"}),
             "flags", 2, 3, "head:4711");
  // A pod knows its number but not the number of pods.
  ExpectNode(
      Read({{"JOB_COMPLETION_INDEX", "1"}}, {.per_node = 2, .nodes = 2, .master = "job-0.job"}),
      "JobSet", 1, 2, "job-0.job:29500");
  ExpectNode(Read({}, {.per_node = 2, .nodes = 1, .master = "[::1]:29"}), "none", 0, 1, "[::1]:29");
}

TEST(NodeRanksTest, WordsThatDoNotFitAreRefused) {
  EXPECT_THAT(ReadNodeRanks({}, {.per_node = 2, .nodes = 2}),
              FailsWith(kInvalid, "nothing says which of them this is"));
  EXPECT_THAT(ReadNodeRanks({}, {.per_node = 2, .node_rank = 0}),
              FailsWith(kInvalid, "without --nodes"));
  EXPECT_THAT(ReadNodeRanks({}, {.per_node = 2, .nodes = 2, .node_rank = 1}),
              FailsWith(kInvalid, "MASTER_ADDR is not set"));
  EXPECT_THAT(ReadNodeRanks(
                  {{"LWS_WORKER_INDEX", "0"}, {"LWS_GROUP_SIZE", "3"}, {"LWS_LEADER_ADDRESS", "a"}},
                  {.per_node = 2, .nodes = 2}),
              FailsWith(kInvalid, "--nodes says 2 nodes, LWS says 3"));
  EXPECT_THAT(
      ReadNodeRanks({{"PET_NODE_RANK", "0"}, {"PET_NNODES", "1"}, {"PET_NPROC_PER_NODE", "4"}},
                    {.per_node = 8}),
      FailsWith(kInvalid, "PET_NPROC_PER_NODE says 4 ranks a node, --per-node 8"));
}

TEST(NodeRanksTest, SeveralOnOneHostAreRefused) {
  EXPECT_THAT(ReadNodeRanks({{"SLURM_PROCID", "1"},
                             {"SLURM_NTASKS", "4"},
                             {"SLURM_STEP_ID", "0"},
                             {"SLURM_STEP_NODELIST", "a"},
                             {"SLURM_STEP_TASKS_PER_NODE", "4"}},
                            {.per_node = 8}),
              FailsWith(kInvalid, "Slurm started several processes on this host"));
  EXPECT_THAT(
      ReadNodeRanks({{"RANK", "1"}, {"WORLD_SIZE", "4"}, {"LOCAL_RANK", "1"}, {"MASTER_ADDR", "a"}},
                    {.per_node = 8}),
      FailsWith(kInvalid, "LOCAL_RANK is set"));
}

}  // namespace
}  // namespace tandem::cli
