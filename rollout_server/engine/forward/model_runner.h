// ModelRunner: the engine's own forward over a KV cache in blocks, on the CPU (stage 2). It owns
// the cache. Use from the engine thread only.
//
// The residual stream, norms, rotary, softmax and logits are fp32. With ComputeDType::kBf16 the
// weights and the cache are bf16, and so are the inputs of all linear layers except the head:
// logits of a bf16 input would lie on a coarse lattice. Weights may be quantised (QuantisationPlan), and
// inputs of quantised layers be int8 with a scale for each token, those of the head 16 bits. What
// adapters beside the weights add is computed in fp32, from inputs before rounding.
//
// The idea: a call is one walk of a thread team through the layers. A linear layer is computed in
// tiles of weights that the threads share out (common/matrix/packed_matrix.h), with the pointwise
// work (bias, SwiGLU, residual add) fused behind each tile, and attention by (run of tokens, KV
// head). Nothing is allocated once the buffers have grown to the largest step.
//
// Invariant: a row's result depends on its sequence and the weights, never on the batch
// composition, because every row goes through the same kernels in the same order of additions.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "common/model/forward_kernels.h"
#include "common/model/model_config.h"
#include "common/model/quantisation_plan.h"
#include "common/process/thread_team.h"
#include "common/tensor/aligned_buffer.h"
#include "common/tensor/instruction_set.h"
#include "common/tensor/machine_limits.h"
#include "rollout_server/engine/forward/adapter_rows.h"
#include "rollout_server/engine/forward/adapter_weights.h"
#include "rollout_server/engine/forward/model_weights.h"
#include "rollout_server/engine/forward/operand_rows.h"
#include "rollout_server/engine/forward/token_runner.h"

namespace tandem::rollout {

class ModelRunner : public TokenRunner {
 public:
  // Allocates and commits the cache: num_blocks blocks of KvBlockPool::kBlockTokens tokens,
  // CacheBytes of memory. Throws std::bad_alloc.
  // `plan` is of this model.
  ModelRunner(const ModelConfig& config, ComputeDType dtype, QuantisationPlan plan,
              int64_t num_blocks, int num_threads, InstructionSet instruction_set);

  absl::StatusOr<std::unique_ptr<StagedWeights>> Pack(
      const std::vector<HostTensor>& tensors, std::unique_ptr<StagedWeights> spare) const override;
  absl::StatusOr<std::unique_ptr<StagedWeights>> PackAs(
      const std::vector<HostTensor>& tensors, const QuantisationPlan& plan) const override;
  absl::StatusOr<std::unique_ptr<StagedWeights>> Adapt(
      std::shared_ptr<const StagedWeights> base,
      std::shared_ptr<const AdapterWeights> adapter) const override;
  bool Packed(const StagedWeights* weights) const override;
  // Calls on_logits from several threads. OK always.
  absl::Status Run(const StagedWeights& weights, std::span<const TokenInput> inputs,
                   std::span<const int64_t> logits_rows, OnLogits on_logits,
                   const ForwardArithmetic& arithmetic = {}) override;
  void CopyBlocks(std::span<const BlockCopy> copies) override;
  MachineWork account() const override { return account_; }
  absl::StatusOr<MachineLimits> MeasureLimits() override {
    return MeasureMachineLimits(team_, set_);
  }
  std::string kernels() const override { return std::string(InstructionSetName(set_)); }

  static int64_t CacheBytes(const ModelConfig& config, ComputeDType dtype, KvFormat kv,
                            int64_t num_blocks);

 private:
  // Neighbouring tokens of one sequence, attended together: inputs [first, first + count).
  struct TokenRun {
    int64_t first = 0, count = 0;
  };
  void Prepare(std::span<const TokenInput> inputs);
  void PrepareAdapters(const AdapterWeights* of_weights, std::span<const TokenInput> inputs,
                       std::span<const int64_t> logits_rows);
  MachineWork AccountOf(const ModelWeights& weights, std::span<const TokenInput> inputs,
                        int64_t num_logits) const;
  void Embed(const ModelWeights& weights, int64_t token_id, int64_t row);
  void FillRotary(std::span<const TokenInput> inputs, int64_t row);
  void RoundKv(float* values, int64_t position) const;
  OperandType InputType(const ModelWeights& weights, const PackedMatrix& matrix) const;
  void StoreBody(OperandRows& rows, OperandType type, int64_t row, int64_t first, float* values,
                 int64_t n) const;
  void FinishRows(ThreadTeam::Member& member, OperandRows& rows, OperandType type, MatrixPlace next,
                  int64_t n);
  void Norm(ThreadTeam::Member& member, const std::vector<float>& weight, OperandType type,
            MatrixPlace next, int64_t rows);
  template <typename Done>
  void Multiply(ThreadTeam::Member& member, const PackedMatrix& matrix,
                const PackedMatrix& following, const Operand& x, int64_t rows, float* out,
                int64_t out_stride, const Done& done);
  void AddProduct(ThreadTeam::Member& member, const LinearWeights& weights, MatrixPlace place,
                  const std::vector<float>& out_norm, const PackedMatrix& following,
                  const Operand& x, int64_t rows);
  void NormHeads(const std::vector<float>& weight, int64_t heads, float* values) const;
  template <typename Kv>
  void RotateAndStore(const LayerWeights& weights, const LayerForm& form, const KvLayer<Kv>& cache,
                      const TokenInput& input, int64_t row);
  template <typename Kv>
  void Attend(ThreadTeam::Member& member, int64_t layer, const KvLayer<Kv>& cache, OperandType type,
              std::span<const TokenInput> inputs);
  template <typename Kv>
  void RunLayer(ThreadTeam::Member& member, int64_t index, const ModelWeights& weights,
                std::span<const TokenInput> inputs);
  void MultiplyHead(ThreadTeam::Member& member, const ModelWeights& weights, int64_t first,
                    int64_t rows);
  void RunHead(ThreadTeam::Member& member, const ModelWeights& weights,
               std::span<const int64_t> logits_rows, OnLogits on_logits);
  template <typename Kv>
  KvLayer<Kv> Cache(int64_t layer);

  const ModelConfig config_;
  const ComputeDType dtype_;
  const QuantisationPlan plan_;
  const int64_t num_blocks_;
  const InstructionSet set_;
  const ForwardKernels& kernels_;
  const decltype(ForwardKernels::swiglu) gated_unit_;
  const float attention_scale_;
  ThreadTeam team_;
  MachineWork account_;
  ForwardArithmetic arithmetic_;  // of the run

  AlignedBuffer keys_;                       // [L, N, Hkv, D, 16] of the type of KvFormat
  AlignedBuffer values_;                     // [L, N, Hkv, 16, padded D]
  AlignedBuffer key_scales_, value_scales_;  // [L, N, Hkv, 16] fp32, of types that have them

  // Buffers of the step, one row for each of its tokens.
  int64_t capacity_ = 0;  // rows
  AlignedBuffer hidden_;  // [N, E] the residual stream
  struct Rotary {
    RotaryEmbedding embedding;
    AlignedBuffer cosines, sines;  // [N, rotated / 2]
  };
  std::vector<Rotary> rotary_;  // RotaryEmbeddings of the model
  AlignedBuffer qkv_;           // [N, whole tiles of (H + 2 Hkv) D]
  OperandRows normed_;          // [N, E]
  AlignedBuffer product_;       // [N, whole tiles of E], where products are normed
  OperandRows attended_;        // [N, H D]
  OperandRows activated_;       // [N, I]
  AlignedBuffer final_normed_;  // [kLogitsRows, E] fp32
  OperandRows head_rows_;       // [2 kLogitsRows, E] the same for a head of int8
  AlignedBuffer logits_;        // [kLogitsRows, whole tiles of V] fp32
  AdapterRows adapters_;        // of the step's tokens
  AdapterRows head_adapters_;   // of those whose logits are computed
  std::vector<TokenRun> runs_;
  std::vector<std::vector<float>> scratch_;  // per thread
};

}  // namespace tandem::rollout
