// Engine: the model, its KV cache, the scheduler and the sampler behind one step function (stage
// 2). EngineThread drives it for the services; `tandem generate` and `tandem score` drive it
// directly.
//
// Use from one thread only, except Stage, which is thread-safe and may run beside Step. What one
// group brings ends that group alone; after an error of Step the engine itself is broken and must
// not be used any more (the process ends).
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/weight_version.h"
#include "common/model/model_config.h"
#include "common/model/numerics.h"
#include "common/options/options.h"
#include "common/tensor/machine_limits.h"
#include "common/tokenizer/tokenizer.h"
#include "common/weights/host_tensor.h"
#include "rollout_server/engine/forward/staged_weights.h"
#include "rollout_server/engine/sampling/score_options.h"
#include "rollout_server/engine/sampling/score_run.h"
#include "rollout_server/engine/schedule/group.h"
#include "rollout_server/faults/engine_faults.h"

namespace tandem::rollout {

// What becomes of groups that run when new weights are installed.
enum class InFlight {
  kKeep,  // they go on over the KV they have; their next tokens are drawn under the new weights
  kRecompute,  // they go on, over KV computed anew under the new weights
  kAbort,      // they end with ABORTED
  kDrain,      // the install waits until they have ended; nothing is admitted meanwhile
};

std::string_view InFlightName(InFlight policy);  // "keep", ...

struct EngineOptions {
  Device device = Device::kCpu;
  bool cuda_graphs = true;              // of steps of decodes; no matter on the CPU
  Numerics numerics = Numerics::kFast;  // the other two are promises, checked at the start
  ComputeDType dtype = ComputeDType::kBf16;
  int64_t kv_capacity_tokens = 0;    // 0: on a CUDA device what memory leaves, else 32768
  bool reserve_for_push = false;     // hold memory for a second version from the start on, so that
                                     // no push fails for want of it
  int64_t max_batch_sequences = 64;  // sequences in one decode step
  int64_t max_step_tokens = 512;     // decode tokens and prompt chunks of one step
  bool prefix_cache = true;          // full blocks of KV are found again by later prompts
  InFlight in_flight = InFlight::kKeep;
  int64_t num_threads = 0;  // 0: the cores of the machine
  EngineFaults faults;      // none; bound by itself (engine_faults.h)
};
void BindOptions(OptionBinder& binder, EngineOptions& options);

// What one Step made, in order.
struct CompletionFinished {
  GroupKey key = 0;
  FinishedCompletion completion;
};
struct GroupFinished {
  GroupKey key = 0;
  int32_t num_prompt_tokens_cached = 0;
  bool incomplete = false;  // StopEarly cut members short
};
struct GroupStarted {  // its prompt began to be computed
  GroupKey key = 0;
  double seconds_ago = 0;  // the step that admitted it took so long
};
struct GroupDecoding {  // its first tokens were drawn
  GroupKey key = 0;
};
struct GroupFailed {  // the last of its group; the other groups go on with the bits they had
  GroupKey key = 0;
  GroupFailure cause = GroupFailure::kNonFiniteLogits;
  absl::Status status;  // DATA_LOSS: names the cause, the completion and the token
};
using EngineEvent =
    std::variant<GroupStarted, GroupDecoding, CompletionFinished, GroupFinished, GroupFailed>;

struct EngineStats {
  int64_t num_groups_waiting = 0;  // admitted to the queue, no KV yet
  int64_t num_groups_running = 0;
  int64_t kv_used_tokens = 0;      // held by groups
  int64_t kv_findable_tokens = 0;  // held by nobody, kept for the prefix index
  int64_t kv_capacity_tokens = 0;
  uint64_t num_tokens_sampled = 0;
  uint64_t num_prompt_tokens_computed = 0;
  // Of all steps: what they read and multiplied at least, and how long they took.
  double step_bytes = 0, step_flops = 0, step_seconds = 0;
  uint64_t num_steps = 0;
  std::array<uint64_t, kNumGroupFailures> num_groups_failed = {};  // by GroupFailure
  uint64_t num_preemptions = 0;  // members (or prompts) that lost their KV
  uint64_t num_prefix_hits = 0, num_prefix_misses = 0, num_prefix_evictions = 0;  // blocks
};

class Engine {
 public:
  // Loads config, tokenizer and weights (nearest cast to options.dtype) as version 0.
  // Errors: those of ReadModelConfig, Tokenizer::Load, ReadModelTensors, CheckFaults,
  // CheckKvMemory, CheckInvariance unless options.numerics is kFast, and MakeCudaRunner when
  // options.device is kCuda, where memory is planned (cuda/memory_plan.h) and the largest steps are
  // run once:
  //   UNIMPLEMENTED  on that device: numerics kExact, faults
  static absl::StatusOr<std::unique_ptr<Engine>> Create(const std::string& model_directory,
                                                        const EngineOptions& options);
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  // Could this group ever run here?
  //   INVALID_ARGUMENT  ValidateSampling; empty prompt; an id outside the vocabulary; prompt +
  //                     max_new_tokens over the context; worst case over the KV capacity; more
  //                     completions than max_batch_sequences; CheckSomethingIsLeft. Thread-safe.
  absl::Status Validate(const GroupRequest& request) const;

  // Queues a group that Validate accepts (else its error): by priority, then in this order.
  absl::Status Add(GroupRequest request);
  void PutLast(GroupKey key);  // of those that wait, whatever its priority was

  // Frees a group at once. False when the key is unknown.
  bool Abort(GroupKey key);

  // Ends a group whose members have drawn something, as it stands: its unfinished members come out
  // with what they have. Nothing when the key is unknown or nothing is drawn yet.
  std::vector<EngineEvent> StopEarly(GroupKey key);

  bool HasWork() const;

  // One step: plan, build inputs, run, sample, commit. Call only while HasWork(). A group that
  // cannot go on for a reason of its own comes out as GroupFailed.
  //   INTERNAL  the device failed
  absl::StatusOr<std::vector<EngineEvent>> Step();

  // Packs a full set of tensors (ModelTensors order, weight_dtype()).
  //   INVALID_ARGUMENT  names, shapes or dtypes differ
  absl::StatusOr<std::unique_ptr<StagedWeights>> Stage(std::vector<HostTensor> tensors) const;

  // As TokenRunner's, of the spare place. Thread-safe; this engine outlives what Arrive gives.
  std::optional<Device> arrival_memory() const;
  absl::StatusOr<std::unique_ptr<ArrivingWeights>> Arrive() const;

  // Serves from `staged` from the next Step on; tokens drawn from then on carry `version`. A
  // pointer swap: microseconds (but for faults of weights). What becomes of running groups says
  // options.in_flight; with kDrain the caller has held admissions until none was left. Returns the
  // groups it ended (kAbort).
  std::vector<GroupKey> Install(std::unique_ptr<StagedWeights> staged, WeightVersion version);

  // While held, no group is admitted: what runs can run out. HasWork() then means running groups.
  void HoldAdmissions(bool hold);

  // What the sampler would have recorded for each token of each sequence under the live weights.
  // Groups take back the KV it is lent when they need it. In this engine, alone, slices and company
  // change no bit; the rungs that compare them are there for engines where they do. Faults do not
  // touch it: it computes with the weights that are claimed, and under the transforms and precision
  // of `options` alone; unless `options` ask for the scores as served.
  //   INVALID_ARGUMENT  ValidateScoreOptions; T < 2, num_prompt_tokens outside [0, T), an id
  //                     outside the vocabulary, over the context; segments (CheckSequences)
  absl::StatusOr<std::unique_ptr<ScoreRun>> StartScore(std::vector<ScoreSequence> sequences,
                                                       const ScoreOptions& options);
  // The same to its end. Errors also of ScoreRun::Step.
  absl::StatusOr<std::vector<SequenceScore>> Score(const std::vector<ScoreSequence>& sequences,
                                                   const ScoreOptions& options);

  WeightVersion live_version() const;
  InFlight in_flight() const;
  const ModelConfig& config() const;
  const Tokenizer& tokenizer() const;
  DType weight_dtype() const;  // kF32 or kBF16
  EngineStats Stats() const;

  // Of this machine with this engine's threads, now; between two steps. TokenRunner's errors.
  absl::StatusOr<MachineLimits> MeasureLimits();
  // What the forward's kernels are made for: "avx512", "cuda NVIDIA H100".
  std::string kernels() const;

  // Version 0 as served (cast to the engine dtype), Hugging Face layout: for digests.
  const std::vector<HostTensor>& initial_tensors() const;
  void DropInitialTensors();  // frees them once digested

 private:
  struct Impl;
  explicit Engine(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace tandem::rollout
