// TrainerOptions: section `trainer` of a run file. Each component's options are nested as they are;
// what stands here belongs to the run as a whole. Used by trainer.cc and main.cc.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "common/base/log.h"
#include "common/hub/model_options.h"
#include "common/options/options.h"
#include "common/rpc/tls_directory.h"
#include "proto/rollout.pb.h"
#include "trainer/advantages/advantage_options.h"
#include "trainer/checkpoints/checkpointer.h"
#include "trainer/drift/drift_monitor.h"
#include "trainer/environments/environment_options.h"
#include "trainer/experience/experience_buffer.h"
#include "trainer/foreign/foreign_options.h"
#include "trainer/metrics/alerts.h"
#include "trainer/prompts/curriculum.h"
#include "trainer/prompts/group_request.h"
#include "trainer/prompts/group_sizes.h"
#include "trainer/prompts/prompt_source.h"
#include "trainer/ranks/process_group.h"
#include "trainer/rewards/rewards.h"
#include "trainer/rollouts/rollout_client.h"
#include "trainer/run/capture_writer.h"
#include "trainer/run/evaluation.h"
#include "trainer/train_step_options.h"
#include "trainer/weight_push/weight_publisher.h"

namespace tandem::trainer {

struct TrainerOptions {
  std::string preset;  // presets.h; its settings are in the other fields already
  std::string run_name = "run";
  std::string out = "runs";
  int64_t seed = 1;
  bool deterministic = false;
  std::string model;
  std::vector<std::string> servers = {"127.0.0.1:50051"};
  rpc::TlsOptions tls;  // how the servers are called
  int64_t steps = 100;
  int64_t prompts_per_step = 8;        // P
  int64_t completions_per_prompt = 8;  // G
  int64_t max_staleness = 0;           // S
  int64_t max_skipped_steps = 5;
  std::string observe_listen;
  double liveness_seconds = 1800;
  std::string trace_file;  // empty: no spans
  std::string history;     // empty: none
  TrainSamplingOptions sampling;
  DataOptions data;
  CurriculumOptions curriculum;
  GroupSizeOptions group_size;
  DynamicSamplingOptions dynamic_sampling;
  EnvironmentOptions environment;
  RewardOptions reward;
  AdvantageOptions advantage;
  LearnerOptions learner;
  RankOptions ranks;
  RolloutClientOptions client;
  ForeignOptions foreign;
  WeightPublisherOptions push;
  CheckpointOptions checkpoint;
  CaptureOptions capture;
  ProbeOptions probe;
  SplitOptions split;
  EvaluationOptions eval;
  AlertOptions alerts;
  log::LogOptions log;
};
void BindOptions(OptionBinder& binder, TrainerOptions& options);

// The most tokens of a completion, those between its turns included.
inline int64_t LongestCompletion(const TrainerOptions& options) {
  return LongestEpisode(options.environment, options.sampling.max_new_tokens);
}

// The same with the option that sets it.
LongestTokens LongestOf(const TrainerOptions& options);

// The limits of a completion's turns that servers are told; none without an environment.
std::optional<rollout::v1::Turns> TurnsOf(const TrainerOptions& options);

// Where no weights of the reward are given: as WeighPythonFunctions, or else the environment, if it
// gives rewards, counts 1 and nothing else does. For whoever has read a run file.
void WeighRewards(TrainerOptions& options);

// Checks what the range of a single field cannot express.
//   INVALID_ARGUMENT  no model, data or server; an observe address that is not HOST:PORT; training
//                     with min_new_tokens; advantages that contradict the group, the KL or each
//                     other; a deterministic run with max_staleness; a budget of the KL to a
//                     reference policy that is not measured, on_kl without a budget, roll_back
//                     without checkpoints or with push.hold_back_versions
//                     or foreign servers with what they do not give; an environment with what it
//                     does not go with
//   UNIMPLEMENTED     numerics exact on a CUDA device
absl::Status CheckOptions(const TrainerOptions& options);

// The options that name models, which may be names on the Hub (common/hub/model_options.h). They
// point into `options`.
std::vector<hub::ModelOption> ModelOptions(TrainerOptions& options);

// The plan of a run in a few lines, for --dry-run.
std::string DescribePlan(const TrainerOptions& options);

}  // namespace tandem::trainer
