// DeviceLayerOps: LayerOps on a GPU. cuBLAS computes products, run_attention.h attention, and
// training_kernels.h the rest. Activations and their gradients have the dtype that linear layers
// compute in; norms, rotary embedding, softmax and log-probs compute in fp32. Attention's lse is
// [H, T].
//
// The head's logits are fp32 sums of products of bfloat16. An fp32 input is split into two bfloat16
// parts, its upper and its lower 8 significand bits, which makes 16 bits, as in the engine.
#pragma once

#include <memory>
#include <optional>

#include "absl/status/statusor.h"
#include "common/model/numerics.h"
#include "trainer/policy/cuda/run_attention.h"
#include "trainer/policy/cuda/token_selection.h"
#include "trainer/policy/cuda/training_kernels.h"
#include "trainer/policy/layer_ops.h"

namespace tandem::trainer {

// The attention of a packed row in two parts: every segment over itself, causal; and the
// completions of each prompt, as one run of queries, over the prompt.
struct DeviceAttentionPlan : AttentionPlan {
  DeviceAttentionPlan(std::span<const Segment> segments, const at::Device& device);

  AttentionRuns own, over_prompts;
  std::optional<TokenSelection> completions, prompts;  // of the second part; empty without one
};

class DeviceLayerOps : public LayerOps {
 public:
  // In tests `device` may be the CPU, where the kernels are emulated.
  DeviceLayerOps(at::Device device, ComputeDType dtype)
      : device_(device), type_(dtype == ComputeDType::kBf16 ? at::kBFloat16 : at::kFloat) {}

  at::Device device() const override { return device_; }
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
  std::shared_ptr<const AttentionPlan> PlanAttention(
      std::span<const Segment> segments) const override;
  Attention Attend(const at::Tensor& q, at::Tensor& k, at::Tensor& v, const AttentionPlan& plan,
                   const AttentionForm& form) const override;
  AttentionGrads AttendBackward(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                const Attention& attention, const at::Tensor& out_grad,
                                const AttentionPlan& plan,
                                const AttentionForm& form) const override;
  at::Tensor Logits(const LinearLayer& head, const at::Tensor& hidden) const override;
  int64_t logit_chunk_rows() const override { return 1024; }
  RowLogprobs Logprobs(const at::Tensor& logits, std::span<const int64_t> tokens,
                       double temperature, Supports support) const override;
  at::Tensor LogprobsBackward(at::Tensor logits, std::span<const int64_t> tokens,
                              double temperature, Supports support, const at::Tensor& lse,
                              const at::Tensor& logprobs_grad,
                              const EntropyGrad& entropy) const override;
  at::Tensor CastToBf16(const std::string& name, const at::Tensor& master,
                        Rounding rounding) const override;

 protected:
  at::ScalarType type() const { return type_; }  // of activations
  at::TensorOptions On(at::ScalarType type) const {
    return at::TensorOptions().dtype(type).device(device_);
  }
  virtual void RunLogprobs(const cuda::TokenLogprobs& task) const;
  template <typename T>
  at::Tensor Upload(std::span<const T> values, at::ScalarType type) const;

 private:
  struct Rows;  // what the kernels of log-probs read besides the logits
  Rows UploadRows(std::span<const int64_t> tokens, Supports support) const;
  cuda::LogitRows LogitRowsOf(const at::Tensor& logits, const Rows& rows, double temperature) const;

  const at::Device device_;
  const at::ScalarType type_;
};

// On this process's current CUDA device; `exact`: ExactDeviceOps (exact_device_ops.h).
//   FAILED_PRECONDITION  a build without CUDA
absl::StatusOr<std::unique_ptr<LayerOps>> MakeDeviceLayerOps(ComputeDType dtype,
                                                             bool exact = false);

}  // namespace tandem::trainer
