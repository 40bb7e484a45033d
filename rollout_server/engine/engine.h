// Engine: the model, its KV cache, the scheduler and the sampler behind one step function (stage
// 2). EngineThread drives it for the services; `tandem generate`, `tandem score` and the drift lab
// drive it directly. Engine::Create makes the real one; tests serve a scripted one without a model.
//
// Use from one thread only, except Validate, Stage, Arrive and arrival_memory, which are
// thread-safe and may run beside Step. A group that cannot go on ends alone; after an error of Step
// the engine itself is broken and must not be used any more (the process ends).
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/weight_version.h"
#include "common/model/model_config.h"
#include "common/model/quantisation_plan.h"
#include "common/tensor/machine_limits.h"
#include "common/tokenizer/tokenizer.h"
#include "common/weights/host_tensor.h"
#include "rollout_server/engine/engine_options.h"
#include "rollout_server/engine/forward/adapter_weights.h"
#include "rollout_server/engine/forward/staged_weights.h"
#include "rollout_server/engine/sampling/score_options.h"
#include "rollout_server/engine/schedule/group.h"

namespace tandem::rollout {

struct EngineStats {
  int64_t num_groups_waiting = 0;  // admitted to the queue, no KV yet
  int64_t num_groups_running = 0;
  int64_t kv_used_tokens = 0;  // held by groups
  int64_t kv_capacity_tokens = 0;
  uint64_t num_tokens_sampled = 0;
  uint64_t num_prompt_tokens_computed = 0;
  uint64_t num_tokens_given = 0;        // to completions of several turns, between two of them
  int64_t num_completions_waiting = 0;  // between two turns, for those
  // Over all steps: the least they had to read and to multiply, and how long they took.
  MachineWork step_work;
  double step_seconds = 0;
  uint64_t num_steps = 0;
  std::array<uint64_t, kNumGroupFailures> num_groups_failed = {};  // by GroupFailure
  uint64_t num_preemptions = 0;  // members (or prompts) that lost their KV
  uint64_t num_prefix_hits = 0, num_prefix_misses = 0, num_prefix_evictions = 0;  // blocks
};

class Engine {
 public:
  // Loads config, tokenizer and weights (nearest cast to options.dtype) as version 0.
  // Errors: those of ReadModelConfig, Tokenizer::Load, ReadModelTensors, CheckFaults,
  // MakeQuantisationPlan, CheckKvMemory, CheckInvariance unless options.numerics is kFast, and MakeCudaRunner when
  // options.device is kCuda, where memory is planned (cuda/memory_plan.h) and the largest steps are
  // run once:
  //   UNIMPLEMENTED  on that device: numerics kExact, faults, quantised weights
  static absl::StatusOr<std::unique_ptr<Engine>> Create(const std::string& model_directory,
                                                        const EngineOptions& options);
  virtual ~Engine() = default;
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  // Could this group ever run here?
  //   INVALID_ARGUMENT  ValidateSampling, ValidateTurns; empty prompt; an id outside the
  //                     vocabulary; prompt + the longest completion over the context; worst case
  //                     over the KV capacity; more completions than max_batch_sequences;
  //                     CheckSomethingIsLeft; an adapter that this engine has not
  //   UNIMPLEMENTED     several turns with the fault `retokenise`, stream_interval with any fault
  virtual absl::Status Validate(const GroupRequest& request) const = 0;

  // Queues a group that Validate accepts (else its error), by priority and then by arrival.
  virtual absl::Status Add(GroupRequest request) = 0;

  // Moves a waiting group behind all others, whatever its priority was.
  virtual void PutLast(GroupKey key) = 0;

  // Frees a group at once. False when the key is unknown.
  virtual bool Abort(GroupKey key) = 0;

  // Ends a group whose members have all sampled something: its unfinished members come out with the
  // tokens that they have. Nothing when the key is unknown or a member has no token yet.
  virtual std::vector<EngineEvent> StopEarly(GroupKey key) = 0;

  // Goes on with, or finishes, a completion that waits between two turns (TurnFinished). Returns the
  // events of a finished one. An answer that was given before changes nothing.
  //   NOT_FOUND  no such group runs, or it has no such completion
  //   the errors of CheckAnswer (turns.h)
  virtual absl::StatusOr<std::vector<EngineEvent>> Continue(GroupKey key,
                                                            const TurnAnswer& answer) = 0;

  // Whether a step has something to compute: not while all groups that run wait for answers.
  virtual bool HasWork() const = 0;

  // One step: plan, build inputs, run, sample, commit. Call only while HasWork(). A group that
  // cannot go on for a reason of its own comes out as GroupFailed.
  //   INTERNAL  the device failed
  virtual absl::StatusOr<std::vector<EngineEvent>> Step() = 0;

  // Packs a full set of tensors (ModelTensors order, weight_dtype()).
  //   INVALID_ARGUMENT  names, shapes or dtypes differ
  virtual absl::StatusOr<std::unique_ptr<StagedWeights>> Stage(
      std::vector<HostTensor> tensors) const = 0;

  // As Stage, in other number formats: TokenRunner::PackAs.
  virtual absl::StatusOr<std::unique_ptr<StagedWeights>> StageAs(
      const std::vector<HostTensor>& tensors, const QuantisationPlan& plan) const;

  // Weights with `adapter` beside the model that was loaded: TokenRunner::Adapt.
  //   FAILED_PRECONDITION  options.lora is not kUnmerged, as in this default
  //   INVALID_ARGUMENT     PackAdapter
  virtual absl::StatusOr<std::unique_ptr<StagedWeights>> StageAdapter(
      const AdapterFactors& adapter) const;
  virtual bool unmerged() const { return false; }

  // As those of TokenRunner, over the memory of the spare version. The engine must outlive what
  // Arrive returns.
  virtual std::optional<Device> arrival_memory() const = 0;
  virtual absl::StatusOr<std::unique_ptr<ArrivingWeights>> Arrive() const = 0;

  // Serves from `staged` from the next Step on; tokens sampled from then on carry `version`. This
  // swaps a pointer and takes microseconds, except with faults on weights. options.in_flight says
  // what becomes of running groups; with kDrain the caller has held admissions until none was left.
  // Returns the groups it ended (kAbort).
  virtual std::vector<GroupKey> Install(std::unique_ptr<StagedWeights> staged,
                                        WeightVersion version) = 0;

  // While held, no group is admitted, so that running groups can run out. HasWork() then means
  // running groups.
  virtual void HoldAdmissions(bool hold) = 0;
  virtual InFlight in_flight() const = 0;

  // What the sampler would have recorded for each token of each sequence under the live weights.
  // Running groups take back the KV that a score was lent when they need it. In this engine neither
  // `alone`, nor slices, nor the batch composition change any bit; ablation steps compare them for
  // engines in which they do. Injected faults do not change scores, which use the claimed weights
  // and only the transforms and arithmetic of `options`, unless options.as_served.
  //   INVALID_ARGUMENT  ValidateScoreOptions; T < 2, num_prompt_tokens outside [0, T), an id
  //                     outside the vocabulary, over the context; segments (CheckSequences)
  virtual absl::StatusOr<std::unique_ptr<ScoreRun>> StartScore(std::vector<ScoreSequence> sequences,
                                                               const ScoreOptions& options) = 0;
  // StartScore, stepped to its end. Errors also of ScoreRun::Step.
  absl::StatusOr<std::vector<SequenceScore>> Score(const std::vector<ScoreSequence>& sequences,
                                                   const ScoreOptions& options);

  virtual WeightVersion live_version() const = 0;
  virtual EngineStats Stats() const = 0;
  // StagedWeights::served_digests of the live weights: empty unless they are quantised here.
  virtual DigestMap served_digests() const { return {}; }

  // Limits of this machine with this engine's threads, measured now; call between two steps. Errors
  // as TokenRunner's.
  virtual absl::StatusOr<MachineLimits> MeasureLimits() = 0;

  // The model that Create loaded; a scripted engine has none.
  const ModelConfig& config() const { return model_.config; }
  bool has_tokenizer() const { return model_.tokenizer != nullptr; }
  const Tokenizer& tokenizer() const { return *model_.tokenizer; }
  DType weight_dtype() const { return model_.weight_dtype; }  // kF32 or kBF16
  // What the forward's kernels are made for: "avx512", "cuda NVIDIA H100".
  const std::string& kernels() const { return model_.kernels; }
  // Version 0 as served (cast to the engine dtype), Hugging Face layout: for digests.
  const std::vector<HostTensor>& initial_tensors() const { return model_.initial_tensors; }
  void DropInitialTensors() { model_.initial_tensors.clear(); }

 protected:
  struct Model {
    ModelConfig config;
    std::unique_ptr<const Tokenizer> tokenizer;
    DType weight_dtype = DType::kF32;
    std::string kernels;
    std::vector<HostTensor> initial_tensors;
  };

  Engine() = default;
  explicit Engine(Model model) : model_(std::move(model)) {}

 private:
  Model model_;
};

}  // namespace tandem::rollout
