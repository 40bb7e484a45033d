// CpuLayerOps: LayerOps on the CPU. All activations are float32. Parallel over rows or heads.
// Attention's lse is [T, H].
#pragma once

#include "trainer/policy/cpu/exact_ops.h"
#include "trainer/policy/layer_ops.h"

namespace tandem::trainer {

class CpuLayerOps : public LayerOps {
 public:
  at::Device device() const override { return at::kCPU; }
  at::Tensor Embed(const at::Tensor& table, std::span<const int32_t> ids) const override;
  void EmbedBackward(const at::Tensor& hidden_grad, std::span<const int32_t> ids,
                     const at::Tensor& table_grad) const override;
  at::Tensor TakeRows(const at::Tensor& rows, std::span<const int64_t> indices) const override;
  at::Tensor SpreadRows(const at::Tensor& values, std::span<const int64_t> indices,
                        int64_t num_rows) const override;
  at::Tensor Linear(const LinearLayer& layer, const at::Tensor& x) const override;
  at::Tensor LinearBackward(const LinearLayer& layer, const at::Tensor& x,
                            const at::Tensor& y_grad) const override;
  Normed RmsNorm(const NormLayer& layer, const at::Tensor& x, double eps) const override;
  void RmsNormBackward(const NormLayer& layer, const at::Tensor& x, const at::Tensor& rstd,
                       const at::Tensor& value_grad, at::Tensor& x_grad) const override;
  RotaryTable MakeRotaryTable(std::span<const int32_t> positions, const RotaryEmbedding& embedding,
                              bool interleaved) const override;
  void Rotate(at::Tensor& x, int64_t num_heads, const RotaryTable& table,
              bool backward) const override;
  at::Tensor GatedUnit(Activation activation, const at::Tensor& gate,
                       const at::Tensor& up) const override;
  void GatedUnitBackward(Activation activation, const at::Tensor& out_grad, at::Tensor& gate,
                         at::Tensor& up) const override;
  void SoftCap(at::Tensor& x, float cap) const override;
  Attention Attend(const at::Tensor& q, at::Tensor& k, at::Tensor& v, const AttentionPlan& plan,
                   const AttentionForm& form) const override;
  AttentionGrads AttendBackward(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                const Attention& attention, const at::Tensor& out_grad,
                                const AttentionPlan& plan,
                                const AttentionForm& form) const override;
  at::Tensor Logits(const LinearLayer& head, const at::Tensor& hidden) const override {
    return Linear(head, hidden);
  }
  int64_t logit_chunk_rows() const override { return 256; }
  RowLogprobs Logprobs(const at::Tensor& logits, std::span<const int64_t> tokens,
                       double temperature, Supports support) const override;
  at::Tensor LogprobsBackward(at::Tensor logits, std::span<const int64_t> tokens,
                              double temperature, Supports support, const at::Tensor& lse,
                              const at::Tensor& logprobs_grad,
                              const EntropyGrad& entropy) const override;
  at::Tensor CastToBf16(const std::string& name, const at::Tensor& master,
                        Rounding rounding) const override;
};

// With attention in the engine's blocks (exact_ops.h); linear layers whose `exact` is set are the
// engine's in any case.
class ExactCpuLayerOps : public CpuLayerOps {
 public:
  explicit ExactCpuLayerOps(ExactKv kv) : kv_(kv) {}
  Attention Attend(const at::Tensor& q, at::Tensor& k, at::Tensor& v, const AttentionPlan& plan,
                   const AttentionForm& form) const override;

 private:
  const ExactKv kv_;
};

}  // namespace tandem::trainer
