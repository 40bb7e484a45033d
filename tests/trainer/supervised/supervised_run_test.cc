#include "trainer/supervised/supervised_run.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "common/base/exit_codes.h"
#include "common/files/file_system.h"
#include "common/weights/digest.h"
#include "nlohmann/json.hpp"
#include "tests/support/status_matchers.h"
#include "tests/support/temp_dir.h"
#include "tests/trainer/supervised/toy_examples.h"
#include "tests/trainer/toy_model.h"
#include "trainer/supervised/objectives/completion_objective.h"
#include "trainer/supervised/objectives/reward_objective.h"

namespace tandem::trainer {
namespace {

using ::tandem::testing::FailsWith;
using ::tandem::testing::IsOk;
using ::tandem::testing::TempDir;
using ::tandem::testing::ToyCompletions;
using ::tandem::testing::ToyConfig;
using ::tandem::testing::ToyPairs;
using ::tandem::testing::ToyWeights;

constexpr char kSettings[] = "batch: 4\nlearning_rate: 0.001\nevaluate_every: 0\n";

// Two epochs of 10 examples, 4 to an update: 6 updates.
const SupervisedOptions kOptions = {.epochs = 2, .batch = 4, .seed = 3, .checkpoint_every = 2};

std::unique_ptr<SupervisedModel> MakeModel(int64_t num_heads) {
  SupervisedModelSetup setup = {.config = ToyConfig(),
                                .num_heads = num_heads,
                                .optimizer = {.learning_rate = 1e-3, .warmup_updates = 2}};
  setup.weights = ToyWeights(setup.config);
  return SupervisedModel::Create(setup).value();
}

std::unique_ptr<SupervisedObjective> MakeObjective(int64_t num_heads) {
  if (num_heads == 0) return std::make_unique<CompletionObjective>(ToyCompletions(10));
  return std::make_unique<RewardObjective>(ToyPairs(10), num_heads, std::vector<double>(),
                                           RewardModelLossOptions());
}

DigestMap DigestsOf(const SupervisedModel& model) {
  DigestMap digests;
  for (const auto& sources : {model.Weights(), model.OptimizerState()}) {
    for (const TensorSource& source : sources) {
      digests[source.spec.name] = Digest128(source.read().value().bytes);
    }
  }
  return digests;
}

struct RunPart {
  absl::StatusOr<SupervisedOutcome> outcome;
  DigestMap digests;
};

// Runs until the end, or until a stop after `stop_after` updates.
RunPart TrainPart(const std::string& out, bool resume, int64_t stop_after, int64_t num_heads = 0,
                  const SupervisedOptions& options = kOptions, std::string data_digest = "data") {
  const auto model = MakeModel(num_heads);
  const auto objective = MakeObjective(num_heads);
  CompletionObjective held_out(ToyCompletions(3, /*seed=*/9));
  int64_t done = 0;
  SupervisedRunSetup setup = {.out = out,
                              .model_directory = out,
                              .settings = kSettings,
                              .data_digest = std::move(data_digest),
                              .resume = resume,
                              .model = model.get(),
                              .objective = objective.get(),
                              .held_out = num_heads == 0 ? &held_out : nullptr};
  setup.stop_requested = [&] { return done == stop_after; };
  setup.on_progress = [&](const SupervisedProgress& progress) { done = progress.done; };
  RunPart part = {TrainSupervised(options, setup), {}};
  part.digests = DigestsOf(*model);
  return part;
}

std::vector<nlohmann::json> MetricsOf(const std::string& out) {
  std::vector<nlohmann::json> lines;
  std::istringstream text(ReadFile(out + "/metrics.jsonl").value());
  for (std::string line; std::getline(text, line);) {
    lines.push_back(nlohmann::json::parse(line));
    lines.back().erase("time_s");
  }
  return lines;
}

TEST(SupervisedRun, AResumedRunEndsWithTheBitsOfOneThatWasNotInterrupted) {
  for (const int64_t num_heads : {0, 2}) {
    const TempDir whole, parts;
    const RunPart uninterrupted = TrainPart(whole.path(), false, -1, num_heads);
    ASSERT_THAT(uninterrupted.outcome, IsOk());
    EXPECT_EQ(uninterrupted.outcome->num_updates, 6);
    const RunPart first = TrainPart(parts.path(), false, 3, num_heads);
    ASSERT_THAT(first.outcome, IsOk());
    EXPECT_TRUE(first.outcome->stopped);
    EXPECT_EQ(first.outcome->num_updates, 3);
    const RunPart second = TrainPart(parts.path(), true, -1, num_heads);
    ASSERT_THAT(second.outcome, IsOk());
    EXPECT_FALSE(second.outcome->stopped);
    EXPECT_NE(first.digests, second.digests);
    EXPECT_EQ(second.digests, uninterrupted.digests);
    EXPECT_EQ(MetricsOf(parts.path()), MetricsOf(whole.path()));
  }
}

TEST(SupervisedRun, WhatWasWrittenAfterTheCheckpointIsCutWhenARunIsResumed) {
  const TempDir directory;
  ASSERT_THAT(TrainPart(directory.path(), false, 3).outcome, IsOk());
  const std::string path = directory.path() + "/metrics.jsonl";
  const std::string lines = ReadFile(path).value();
  ASSERT_THAT(WriteFileAtomically(path, lines + "{\"step\":4,\"loss\":99}\n{\"step\":5,\"lo"),
              IsOk());
  ASSERT_THAT(TrainPart(directory.path(), true, -1).outcome, IsOk());
  const std::vector<nlohmann::json> metrics = MetricsOf(directory.path());
  ASSERT_EQ(metrics.size(), 6u);
  for (size_t i = 0; i < 6; ++i) EXPECT_EQ(metrics[i]["step"], i + 1);
  EXPECT_LT(metrics[3]["loss"].get<double>(), 10);
}

TEST(SupervisedRun, EpochsSeeEveryExampleOnceInAnOrderOfTheirOwn) {
  const TempDir directory;
  const RunPart run = TrainPart(directory.path(), false, -1);
  ASSERT_THAT(run.outcome, IsOk());
  const std::vector<nlohmann::json> metrics = MetricsOf(directory.path());
  int64_t first_epoch = 0, second_epoch = 0;
  for (size_t i = 0; i < 6; ++i) {
    (i < 3 ? first_epoch : second_epoch) += metrics[i]["num_tokens"].get<int64_t>();
  }
  EXPECT_EQ(first_epoch, second_epoch);
  EXPECT_NE(metrics[0]["num_tokens"], metrics[3]["num_tokens"]);
}

TEST(SupervisedRun, HeldOutRowsAreMeasuredEveryNUpdatesAndAtTheEnd) {
  const TempDir directory;
  SupervisedOptions options = kOptions;
  options.evaluate_every = 4;
  const RunPart run = TrainPart(directory.path(), false, -1, 0, options);
  ASSERT_THAT(run.outcome, IsOk());
  ASSERT_TRUE(run.outcome->held_out.has_value());
  std::vector<int64_t> measured;
  for (const nlohmann::json& line : MetricsOf(directory.path())) {
    if (line.contains("held_out/loss")) measured.push_back(line["step"].get<int64_t>());
  }
  EXPECT_EQ(measured, (std::vector<int64_t>{4, 6}));
}

TEST(SupervisedRun, MaxUpdatesEndsTheRunEarly) {
  EXPECT_EQ(NumUpdates(kOptions, 10), 6);
  EXPECT_EQ(NumUpdates({.epochs = 2, .max_updates = 5, .batch = 4}, 10), 5);
  EXPECT_EQ(NumUpdates({.epochs = 1, .max_updates = 5, .batch = 4}, 10), 3);
}

TEST(SupervisedRun, OtherDataIsRefusedWhenARunIsResumed) {
  const TempDir directory;
  ASSERT_THAT(TrainPart(directory.path(), false, 3).outcome, IsOk());
  EXPECT_THAT(TrainPart(directory.path(), true, -1, 0, kOptions, "other").outcome,
              FailsWith(absl::StatusCode::kInvalidArgument, "trained on other examples"));
}

TEST(SupervisedRun, TheSettingThatDiffersIsNamed) {
  EXPECT_THAT(CheckSameSettings(kSettings, "batch: 4\nlearning_rate: 0.001\nevaluate_every: 7\n"),
              IsOk());
  EXPECT_THAT(CheckSameSettings(kSettings, "batch: 4\nlearning_rate: 0.01\nevaluate_every: 0\n"),
              FailsWith(absl::StatusCode::kInvalidArgument,
                        "started with `learning_rate: 0.001`, not `learning_rate: 0.01`"));
}

TEST(SupervisedRun, ARunThatDidNotEndIsNotOverwritten) {
  const TempDir directory;
  EXPECT_THAT(CheckRunDirectory(directory.path(), false), IsOk());
  EXPECT_THAT(CheckRunDirectory(directory.path(), true),
              FailsWith(absl::StatusCode::kNotFound, "holds no checkpoint"));
  ASSERT_THAT(TrainPart(directory.path(), false, 3).outcome, IsOk());
  EXPECT_THAT(CheckRunDirectory(directory.path(), false),
              FailsWith(absl::StatusCode::kAlreadyExists, "--resume"));
  EXPECT_THAT(CheckRunDirectory(directory.path(), true), IsOk());
}

}  // namespace
}  // namespace tandem::trainer
