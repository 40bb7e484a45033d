// What a run is made from and how it describes itself: its inputs, the check of each rollout
// server, its card (run.json) and the manifest of a capture. Used by trainer.cc.
#pragma once

#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/capture/capture.h"
#include "common/model/model_config.h"
#include "common/tokenizer/tokenizer.h"
#include "proto/rollout.pb.h"
#include "trainer/checkpoints/checkpointer.h"
#include "trainer/environments/environment_pool.h"
#include "trainer/prompts/curriculum.h"
#include "trainer/prompts/prompt_source.h"
#include "trainer/ranks/learner.h"
#include "trainer/rewards/rewards.h"
#include "trainer/run/run_state.h"
#include "trainer/trainer_options.h"
#include "trainer/weight_push/weight_publisher.h"

namespace tandem::trainer {

struct RunInputs {
  std::unique_ptr<RewardFunction> rewards;
  ModelConfig model_config;
  std::unique_ptr<Tokenizer> tokenizer;
  Checkpointer::Identity identity;
  RunPrompts prompts;
  std::unique_ptr<Curriculum> curriculum;
  std::unique_ptr<EnvironmentPool> environments;  // null: completions are of one turn
};

// Opens rewards, environment, model directory, tokenizer and prompts. `options` must outlive what it
// returns. Errors carry their exit code:
//   kUsage           options of the reward or the environment that do not fit
//   kBadModelOrData  a model, a tokenizer or prompts that cannot be read
absl::StatusOr<RunInputs> OpenRunInputs(const TrainerOptions& options, const Learner& learner);

// Can the run train on what a server with this `info` samples? Also asked of servers that join
// later. Thread-safe.
//   INVALID_ARGUMENT  other numerics or another tokenizer (both named)
absl::Status CheckServer(const rollout::v1::GetInfoResponse& info, const TrainerOptions& options,
                         const Learner& learner, const Tokenizer& tokenizer);

// All that the card and the manifest describe.
struct RunParts {
  const TrainerOptions& options;
  const RunInputs& inputs;
  const RunState& state;
  const Learner& learner;
  const RolloutClient& client;
  const WeightPublisher& publisher;
};

// run.json. Warns of servers that inject faults.
std::string DescribeRun(const RunParts& run);

// The manifest of a capture of the batch that train step `step` consumes; its weights are the live
// ones before the step.
offpolicy::CaptureManifest DescribeCapture(const RunParts& run, int64_t step);

}  // namespace tandem::trainer
