// TokenRunner: the engine's forward and its KV cache on one device (stage 2): ModelRunner on the
// CPU, cuda/cuda_runner.h on a GPU. Weights are an argument of each call, so that new weights are a
// pointer swap between two steps.
//
// Use from the engine thread only, except the methods that say otherwise.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/model/forward_arithmetic.h"
#include "common/model/numerics.h"
#include "common/model/quantisation_plan.h"
#include "common/tensor/machine_limits.h"
#include "common/weights/host_tensor.h"
#include "rollout_server/engine/forward/adapter_weights.h"
#include "rollout_server/engine/forward/staged_weights.h"
#include "rollout_server/engine/sampling/sampler.h"
#include "rollout_server/engine/sampling/score_options.h"
#include "rollout_server/engine/schedule/scheduler.h"
#include "rollout_server/engine/schedule/sequence.h"
#include "rollout_server/engine/schedule/stop_ids.h"

namespace tandem::rollout {

// One token to compute. Its KV is written to `position` of the sequence with that block table, and
// it attends to positions 0..position.
struct TokenInput {
  int32_t token_id = 0;
  int32_t position = 0;
  const std::vector<BlockId>* blocks = nullptr;
  const AdapterWeights* adapter = nullptr;  // beside the weights; null: theirs, if they have one
};

// A token to be sampled from a row of logits, by SampleToken with UniformDraw(params->seed, index,
// position).
struct TokenDraw {
  int64_t logits_row = 0;  // index into the call's logits_rows, in whose order a call's draws come
  const SamplingParams* params = nullptr;
  const StopIds* forbidden = nullptr;  // shared by a group; null: none
  uint32_t index = 0;                  // of the completion in its group
  uint32_t position = 0;               // number of tokens sampled before in its completion
};

struct PlanInputs {
  std::vector<TokenInput> tokens;    // in the order of the plan's work
  std::vector<int64_t> logits_rows;  // indices of `tokens` whose logits are needed
  // The sequences that get a token, in order of their row of logits, and how each one samples it.
  std::vector<Sequence*> sequences;
  std::vector<TokenDraw> draws;
};

class TokenRunner {
 public:
  virtual ~TokenRunner() = default;

  // Copies tensors into the layout that Run reads, in the memory of `spare` (weights that nobody
  // reads any more) unless it is null. Thread-safe, also beside Run.
  //   INVALID_ARGUMENT    a tensor has another name, shape or dtype than ModelTensors says
  //   RESOURCE_EXHAUSTED  no device memory
  virtual absl::StatusOr<std::unique_ptr<StagedWeights>> Pack(
      const std::vector<HostTensor>& tensors, std::unique_ptr<StagedWeights> spare) const = 0;

  // As Pack in fresh memory, quantised by `plan` instead of the runner's own, whose KV it must have.
  //   UNIMPLEMENTED  this runner does not quantise, as in this default
  virtual absl::StatusOr<std::unique_ptr<StagedWeights>> PackAs(
      const std::vector<HostTensor>& tensors, const QuantisationPlan& plan) const;

  // `base`, packed by this runner, with an adapter beside it (null: none yet). Thread-safe.
  //   UNIMPLEMENTED  this runner applies no adapters, as in this default
  virtual absl::StatusOr<std::unique_ptr<StagedWeights>> Adapt(
      std::shared_ptr<const StagedWeights> base,
      std::shared_ptr<const AdapterWeights> adapter) const;

  // Were these weights made by Pack, Adapt or Arrive of such a runner?
  virtual bool Packed(const StagedWeights* weights) const = 0;

  // Weights that arrive without a copy in host memory. arrival_memory: the device whose memory they
  // may arrive in. Arrive: memory for the next version there, that of `spare` unless it is null;
  // when nobody takes the weights, `give_back` gets them. Thread-safe, also beside Run.
  //   UNIMPLEMENTED       arrival_memory is none, as in this default
  //   RESOURCE_EXHAUSTED  no device memory
  //   INTERNAL            the device failed
  virtual std::optional<Device> arrival_memory() const { return std::nullopt; }
  virtual absl::StatusOr<std::unique_ptr<ArrivingWeights>> Arrive(
      std::unique_ptr<StagedWeights> spare,
      std::function<void(std::unique_ptr<StagedWeights>)> give_back) const;

  // Computes `inputs` [N], and calls on_logits(i, logits [V] fp32) for the row
  // inputs[logits_rows[i]] for every i, in any order and maybe from several threads. Tokens of one
  // sequence may come in one call, next to each other and in order of position.
  //   UNIMPLEMENTED  this runner does not have that arithmetic
  //   INTERNAL       the device failed
  using OnLogits = absl::FunctionRef<void(int64_t, std::span<const float>)>;
  virtual absl::Status Run(const StagedWeights& weights, std::span<const TokenInput> inputs,
                           std::span<const int64_t> logits_rows, OnLogits on_logits,
                           const ForwardArithmetic& arithmetic = {}) = 0;

  // As Run, then tokens[i] = draw(inputs.draws[i], its row of logits), maybe from several threads.
  using DrawFunction =
      absl::FunctionRef<absl::StatusOr<SampledToken>(const TokenDraw&, std::span<const float>)>;
  absl::Status RunAndDrawBy(DrawFunction draw, const StagedWeights& weights,
                            const PlanInputs& inputs,
                            std::span<absl::StatusOr<SampledToken>> tokens,
                            const ForwardArithmetic& arithmetic = {});

  // As Run, then samples: tokens[i] is what inputs.draws[i] gives. This default calls SampleToken
  // on Run's logits. Errors as Run.
  virtual absl::Status RunAndDraw(const StagedWeights& weights, const PlanInputs& inputs,
                                  std::span<absl::StatusOr<SampledToken>> tokens);

  // As Run, then scores: tokens[i] is what ScoreToken gives for ids[i] and the row logits_rows[i],
  // under the transforms and the arithmetic of `options`. This default calls ScoreToken on Run's
  // logits. Errors as Run.
  virtual absl::Status RunAndScore(const StagedWeights& weights, std::span<const TokenInput> inputs,
                                   std::span<const int64_t> logits_rows,
                                   std::span<const int32_t> ids, const ScoreOptions& options,
                                   std::span<absl::StatusOr<ScoredToken>> tokens);

  // Before the first step: allocates the memory that the largest steps need, so that a lack of it
  // is an error at the start. This default does nothing.
  //   RESOURCE_EXHAUSTED  the device has not that much
  //   INTERNAL            the device failed
  virtual absl::Status Rehearse(const StagedWeights&, int64_t /*max_step_tokens*/,
                                int64_t /*max_sequences*/) {
    return absl::OkStatus();
  }

  // Copies whole blocks, all layers.
  virtual void CopyBlocks(std::span<const BlockCopy> copies) = 0;

  // The least that the last Run had to read (weights once, and the KV it attended to) and to
  // multiply. With the machine's limits it bounds the time of a step from below (roofline).
  virtual MachineWork account() const = 0;

  // Limits of the device, measured now.
  //   RESOURCE_EXHAUSTED  no device memory for it
  //   INTERNAL            the device failed
  virtual absl::StatusOr<MachineLimits> MeasureLimits() = 0;

  // What the kernels are made for: "avx512", "cuda NVIDIA H100". Within one build, equal names mean
  // equal bits.
  virtual std::string kernels() const = 0;
};

std::span<const int32_t> ForbiddenIds(const TokenDraw& draw);  // rising

// SampleToken, for a draw and its row of logits.
absl::StatusOr<SampledToken> DrawOnHost(const TokenDraw& draw, std::span<const float> logits);

// What the runner computes and samples for a plan of the scheduler. Pure.
PlanInputs BuildInputs(const StepPlan& plan);

}  // namespace tandem::rollout
