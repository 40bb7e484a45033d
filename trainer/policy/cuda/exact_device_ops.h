// ExactDeviceOps: DeviceLayerOps whose forward runs the kernels of an engine on a device with
// numerics `invariant` or `exact`, over weights as a push sends them. The same tokens get the same
// bits on the same device model and build, however rows are packed. The backward pass is that of
// DeviceLayerOps, where flash attention computes the attention again.
//
// Values that the engine keeps in fp32 (projections, gates) are fp32 here too; keys and values are
// rounded as the engine's cache stores them.
#pragma once

#include "trainer/policy/cuda/device_layer_ops.h"

namespace tandem::trainer {

class ExactDeviceOps : public DeviceLayerOps {
 public:
  using DeviceLayerOps::DeviceLayerOps;

  at::Tensor Linear(const LinearLayer& layer, const at::Tensor& x) const override;
  Normed RmsNorm(const NormLayer& layer, const at::Tensor& x, double eps) const override;
  RotaryTable MakeRotaryTable(std::span<const int32_t> positions, const RotaryEmbedding& embedding,
                              bool interleaved) const override;
  RotatedHeads NormAndRotate(const NormLayer& norm, double eps, int64_t num_heads,
                             const RotaryTable& table, at::Tensor projected) const override;
  at::Tensor GatedUnit(Activation activation, const at::Tensor& gate,
                       const at::Tensor& up) const override;
  std::shared_ptr<const AttentionPlan> PlanAttention(
      std::span<const Segment> segments) const override;
  // Leaves lse undefined.
  Attention Attend(const at::Tensor& q, at::Tensor& k, at::Tensor& v, const AttentionPlan& plan,
                   const AttentionForm& form) const override;
  AttentionGrads AttendBackward(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                const Attention& attention, const at::Tensor& out_grad,
                                const AttentionPlan& plan,
                                const AttentionForm& form) const override;
  at::Tensor Logits(const LinearLayer& head, const at::Tensor& hidden) const override;

 protected:
  void RunLogprobs(const cuda::TokenLogprobs& task) const override;

 private:
  at::Tensor Product(const at::Tensor& x, const at::Tensor& weight) const;
};

}  // namespace tandem::trainer
