#include "rollout_server/engine/model_weights.h"

#include <ATen/ops/cat.h>

#include <map>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/tensor/host_tensor_conversion.h"
#include "common/tensor/torch_status.h"

namespace tandem::rollout {
namespace {

class TensorsByName {
 public:
  TensorsByName(std::map<std::string, at::Tensor> tensors, at::ScalarType dtype)
      : tensors_(std::move(tensors)), dtype_(dtype) {}

  // In the compute dtype.
  at::Tensor Weight(const std::string& name) const { return tensors_.at(name).to(dtype_); }

  // Values of the compute dtype, as fp32; a copy, since the source may be a reused staging buffer.
  at::Tensor Fp32(const std::string& name) const { return Weight(name).to(at::kFloat).clone(); }

  at::Tensor Bias(const std::string& name, bool has) const { return has ? Fp32(name) : at::Tensor(); }

  at::Tensor Joined(const std::vector<std::string>& names) const {
    std::vector<at::Tensor> parts;
    for (const std::string& name : names) parts.push_back(Weight(name));
    return at::cat(parts, 0);
  }

  at::Tensor JoinedBias(const std::vector<std::string>& names, bool has) const {
    return has ? Joined(names).to(at::kFloat) : at::Tensor();
  }

 private:
  const std::map<std::string, at::Tensor> tensors_;
  const at::ScalarType dtype_;
};

LayerWeights PackLayer(const ModelConfig& config, const TensorsByName& tensors, int64_t index,
                       int64_t rows) {
  const std::string layer = absl::StrCat("model.layers.", index, ".");
  const std::string attention = layer + "self_attn.", mlp = layer + "mlp.";
  const auto named = [](const std::string& prefix, std::vector<std::string> names,
                        const std::string& suffix) {
    for (std::string& name : names) name = prefix + name + suffix;
    return names;
  };
  LayerWeights out;
  out.input_norm = tensors.Fp32(layer + "input_layernorm.weight");
  out.post_norm = tensors.Fp32(layer + "post_attention_layernorm.weight");
  if (config.qk_norm) {
    out.q_norm = tensors.Fp32(attention + "q_norm.weight");
    out.k_norm = tensors.Fp32(attention + "k_norm.weight");
  }
  const std::vector<std::string> qkv = {"q_proj", "k_proj", "v_proj"};
  out.qkv = PackedLinear(
      tensors.Joined(named(attention, qkv, ".weight")),
      tensors.JoinedBias(named(attention, qkv, ".bias"), config.attention_qkv_bias), rows);
  out.o = PackedLinear(tensors.Weight(attention + "o_proj.weight"),
                       tensors.Bias(attention + "o_proj.bias", config.attention_o_bias), rows);
  const std::vector<std::string> gate_up = {"gate_proj", "up_proj"};
  out.gate_up = PackedLinear(tensors.Joined(named(mlp, gate_up, ".weight")),
                             tensors.JoinedBias(named(mlp, gate_up, ".bias"), config.mlp_bias), rows);
  out.down = PackedLinear(tensors.Weight(mlp + "down_proj.weight"),
                          tensors.Bias(mlp + "down_proj.bias", config.mlp_bias), rows);
  return out;
}

}  // namespace

absl::StatusOr<std::unique_ptr<ModelWeights>> PackModelWeights(const ModelConfig& config,
                                                               const std::vector<HostTensor>& tensors,
                                                               ComputeDType dtype,
                                                               int64_t expected_rows) {
  const std::vector<TensorSpec> want = ModelTensors(config, DType::kF32);
  if (tensors.size() != want.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat(tensors.size(), " tensors, the model has ", want.size()));
  }
  std::map<std::string, at::Tensor> views;
  for (size_t i = 0; i < want.size(); ++i) {
    const TensorSpec& spec = tensors[i].spec;
    if (spec.name != want[i].name || spec.shape != want[i].shape) {
      return absl::InvalidArgumentError(
          absl::StrCat("tensor ", i, " is ", spec.ToString(), ", want ", want[i].ToString()));
    }
    TANDEM_ASSIGN_OR_RETURN(views[spec.name], ViewAsTensor(tensors[i]));
  }
  const at::ScalarType type = dtype == ComputeDType::kBf16 ? at::kBFloat16 : at::kFloat;
  return CatchTorch("pack weights", [&] {
    const TensorsByName by_name(std::move(views), type);
    auto out = std::make_unique<ModelWeights>();
    out->embedding = by_name.Weight("model.embed_tokens.weight").clone();
    for (int64_t i = 0; i < config.num_layers; ++i) {
      out->layers.push_back(PackLayer(config, by_name, i, expected_rows));
    }
    out->final_norm = by_name.Fp32("model.norm.weight");
    const at::Tensor head =
        config.tie_word_embeddings ? out->embedding : by_name.Weight("lm_head.weight");
    out->head = PackedLinear(head.to(at::kFloat), at::Tensor(), expected_rows);
    return out;
  });
}

}  // namespace tandem::rollout
