// FaultHooks: everything that injected faults do inside an engine, at the four places where they
// act: weights, prompt inputs, sampling and records. A healthy engine has none (a null pointer), so
// none of this runs in production.
//
// Use from the engine thread only, except Stage, which is thread-safe.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/model/forward_arithmetic.h"
#include "common/model/model_config.h"
#include "common/model/quantisation_plan.h"
#include "common/tokenizer/tokenizer.h"
#include "common/weights/host_tensor.h"
#include "rollout_server/engine/forward/staged_weights.h"
#include "rollout_server/engine/forward/token_runner.h"
#include "rollout_server/engine/schedule/group.h"
#include "rollout_server/engine/schedule/scheduler.h"
#include "rollout_server/faults/engine_faults.h"
#include "rollout_server/faults/faulty_weights.h"

namespace tandem::rollout {

class FaultHooks {
 public:
  // Null when no fault is active. `first`: version 0, in ModelTensors order and the engine's dtype.
  static std::unique_ptr<FaultHooks> Make(const EngineFaults& faults, const ModelConfig& config,
                                          const QuantisationPlan& plan,
                                          const std::vector<HostTensor>& first);

  // A stale prefix is a fault of its own, which the engine's prefix cache would hide.
  bool allows_prefix_cache() const { return faults_.stale_prefix_fraction == 0; }
  ForwardArithmetic arithmetic() const { return faults_.arithmetic(); }

  // Weights. Faults make the served weights from tensors in host memory, which Stage therefore
  // copies beside the claimed ones. Install takes what Stage returned, moves on to those tensors
  // and returns the claimed weights alone.
  bool on_weights() const { return faults_.weights(); }
  std::unique_ptr<StagedWeights> Stage(std::unique_ptr<StagedWeights> claimed,
                                       const std::vector<HostTensor>& tensors) const;
  std::unique_ptr<StagedWeights> Install(std::unique_ptr<StagedWeights> staged);
  // The weights that serve where `claimed` ought to.
  const StagedWeights& Served(const StagedWeights& claimed) const;

  // As runner.RunAndDraw, with the faults of weights, prompt inputs, arithmetic and sampling.
  // `num_installs`: of weights at this engine so far. Errors as TokenRunner::Run.
  absl::Status RunAndDraw(TokenRunner& runner, const StagedWeights& claimed, uint64_t num_installs,
                          const StepPlan& plan, PlanInputs inputs,
                          std::span<absl::StatusOr<SampledToken>> tokens) const;

  // Spoils a finished completion, whose finish_reason is set, on its way out. With shift_fraction
  // its behaviour and raw log-probs turn by one place, for a share of completions that (seed,
  // index) decides: element t is about token t - 1, and the first about the last. With
  // synthetic_end an end token's behaviour log-prob becomes 0. With retokenise token_ids become
  // those of the text, maybe more or fewer than the log-probs, and hashed_ids keeps the sampled
  // ones.
  //   INTERNAL  the text of the ids cannot be encoded
  absl::Status SpoilRecord(uint64_t seed, const Tokenizer& tokenizer,
                           FinishedCompletion& completion) const;

 private:
  explicit FaultHooks(const EngineFaults& faults) : faults_(faults) {}
  bool HasStalePrefix(const RunningGroup& group) const;
  std::vector<TokenInput> SpoilInputs(const StepPlan& plan, PlanInputs& inputs) const;

  const EngineFaults faults_;
  std::optional<FaultyWeights> weights_;  // none without a fault on weights
};

}  // namespace tandem::rollout
