#include "rollout_server/engine/forward/model_weights.h"

#include <cstring>
#include <map>
#include <string>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/tensor/bf16_rounding.h"
#include "common/weights/digest.h"

namespace tandem::rollout {
namespace {

// Reads the elements of the model's tensors as T (float, or uint16_t for bf16).
template <typename T>
class Source {
 public:
  explicit Source(const std::vector<HostTensor>& tensors) {
    for (const HostTensor& tensor : tensors) tensors_[tensor.spec.name] = &tensor;
  }

  // Pointers to the rows [begin, end) of a matrix [O, I].
  void AppendRows(const std::string& name, int64_t begin, int64_t end,
                  std::vector<const T*>& rows) {
    const HostTensor& tensor = *tensors_.at(name);
    const T* data = Data(tensor);
    for (int64_t o = begin; o < end; ++o) rows.push_back(data + o * tensor.spec.shape[1]);
  }
  void AppendRows(const std::string& name, std::vector<const T*>& rows) {
    AppendRows(name, 0, tensors_.at(name)->spec.shape[0], rows);
  }

  void AppendVector(const std::string& name, std::vector<float>& out) {
    const HostTensor& tensor = *tensors_.at(name);
    const T* data = Data(tensor);
    for (int64_t i = 0; i < tensor.spec.num_elements(); ++i) {
      if constexpr (sizeof(T) == 4) {
        out.push_back(data[i]);
      } else {
        out.push_back(Bf16ToFloat(data[i]));
      }
    }
  }

  std::vector<float> Vector(const std::string& name) {
    std::vector<float> out;
    AppendVector(name, out);
    return out;
  }

  // The weight of a norm plus `offset`; no elements without a name.
  std::vector<float> Norm(const std::string& layer, std::string_view name, float offset) {
    if (name.empty()) return {};
    std::vector<float> out = Vector(absl::StrCat(layer, std::string(name), ".weight"));
    if (offset != 0) {
      for (float& value : out) value += offset;
    }
    return out;
  }

 private:
  const T* Data(const HostTensor& tensor) {
    if (reinterpret_cast<uintptr_t>(tensor.bytes.data()) % sizeof(T) == 0) {
      return reinterpret_cast<const T*>(tensor.bytes.data());
    }
    // In a file, tensors may begin at odd addresses.
    std::vector<T>& copy = copies_[tensor.spec.name];
    copy.resize(tensor.bytes.size() / sizeof(T));
    std::memcpy(copy.data(), tensor.bytes.data(), tensor.bytes.size());
    return copy.data();
  }

  std::map<std::string, const HostTensor*> tensors_;
  std::map<std::string, std::vector<T>> copies_;
};

// Packs several projections of one input as one matrix.
template <typename T>
void PackLinear(Source<T>& source, const std::string& prefix, const std::vector<std::string>& names,
                bool has_bias, int64_t depth, const WeightFormat& format, LinearWeights& out) {
  std::vector<const T*> rows;
  out.bias.clear();
  for (const std::string& name : names) {
    source.AppendRows(absl::StrCat(prefix, name, ".weight"), rows);
    if (has_bias) source.AppendVector(absl::StrCat(prefix, name, ".bias"), out.bias);
  }
  out.matrix.Pack(std::span<const T* const>(rows), depth, format);
}

// Packs gates and ups side by side in each tile, so that SwiGLU can be applied to a finished tile.
template <typename T>
void PackGateUp(const ModelConfig& config, Source<T>& source, const std::string& mlp,
                const WeightFormat& format, LinearWeights& out) {
  constexpr int64_t kWidth = PackedMatrix::kPanelColumns;
  const int64_t inner = config.intermediate_size;
  std::vector<const T*> gate_rows, up_rows, rows;
  std::vector<float> gate_bias(inner), up_bias(inner);
  if (config.fused_gate_up) {
    source.AppendRows(mlp + "gate_up_proj.weight", 0, inner, gate_rows);
    source.AppendRows(mlp + "gate_up_proj.weight", inner, 2 * inner, up_rows);
  } else {
    source.AppendRows(mlp + "gate_proj.weight", gate_rows);
    source.AppendRows(mlp + "up_proj.weight", up_rows);
  }
  if (config.mlp_bias) {
    gate_bias = source.Vector(mlp + "gate_proj.bias");
    up_bias = source.Vector(mlp + "up_proj.bias");
  }
  const std::vector<T> zeros(config.hidden_size);
  out.bias.clear();
  for (int64_t first = 0; first < config.intermediate_size; first += kWidth) {
    for (const auto& [part, bias] : {std::pair(&gate_rows, &gate_bias), {&up_rows, &up_bias}}) {
      for (int64_t i = first; i < first + kWidth; ++i) {
        const bool inside = i < config.intermediate_size;
        rows.push_back(inside ? (*part)[i] : zeros.data());
        if (config.mlp_bias) out.bias.push_back(inside ? (*bias)[i] : 0.0f);
      }
    }
  }
  out.matrix.Pack(std::span<const T* const>(rows), config.hidden_size, format);
}

template <typename T>
void PackLayer(const ModelConfig& config, Source<T>& source, int64_t index,
               const LayerFormats& formats, LayerWeights& out) {
  const std::string layer = absl::StrCat("model.layers.", index, ".");
  const std::string attention = layer + "self_attn.", mlp = layer + "mlp.";
  const float offset = config.norm_offset;
  out.attention_norm = source.Norm(layer, config.norms.attention, offset);
  out.attention_out_norm = source.Norm(layer, config.norms.attention_out, offset);
  out.mlp_norm = source.Norm(layer, config.norms.mlp, offset);
  out.mlp_out_norm = source.Norm(layer, config.norms.mlp_out, offset);
  if (config.qk_norm != QkNorm::kNone) {
    out.q_norm = source.Norm(attention, "q_norm", offset);
    out.k_norm = source.Norm(attention, "k_norm", offset);
  }
  const std::vector<std::string> qkv = config.fused_qkv
                                           ? std::vector<std::string>{"qkv_proj"}
                                           : std::vector<std::string>{"q_proj", "k_proj", "v_proj"};
  PackLinear(source, attention, qkv, config.attention_qkv_bias, config.hidden_size,
             formats.at(Site::kQkv), out.qkv);
  PackLinear(source, attention, {"o_proj"}, config.attention_o_bias,
             config.num_heads * config.head_dim, formats.at(Site::kO), out.o);
  PackGateUp(config, source, mlp, formats.at(Site::kGateUp), out.gate_up);
  PackLinear(source, mlp, {"down_proj"}, config.mlp_bias, config.intermediate_size,
             formats.at(Site::kDown), out.down);
}

template <typename T>
void PackAll(const ModelConfig& config, const std::vector<HostTensor>& tensors,
             const QuantisationPlan& plan, ModelWeights& out) {
  Source<T> source(tensors);
  std::vector<const T*> embedding, head;
  source.AppendRows("model.embed_tokens.weight", embedding);
  if (config.tie_word_embeddings) {
    head = embedding;
  } else {
    source.AppendRows("lm_head.weight", head);
    out.embedding.Pack(std::span<const T* const>(embedding), config.hidden_size, plan.head);
  }
  out.head.Pack(std::span<const T* const>(head), config.hidden_size, plan.head);
  out.layers.resize(config.num_layers);
  for (int64_t i = 0; i < config.num_layers; ++i) {
    PackLayer(config, source, i, plan.layers[static_cast<size_t>(i)], out.layers[i]);
  }
  out.final_norm = source.Norm("model.", "norm", config.norm_offset);
  out.activations = plan.activations;
}

DigestMap DigestMatrices(const ModelWeights& weights) {
  DigestMap digests;
  const auto add = [&](const std::string& name, const PackedMatrix& matrix) {
    if (matrix.columns() > 0) digests[name] = Digest128(std::as_bytes(matrix.stored()));
  };
  add("head", weights.head);
  add("embedding", weights.embedding);
  for (size_t i = 0; i < weights.layers.size(); ++i) {
    const LayerWeights& layer = weights.layers[i];
    const LinearWeights* const linears[kNumSites] = {&layer.qkv, &layer.o, &layer.gate_up,
                                                     &layer.down};
    for (size_t site = 0; site < kNumSites; ++site) {
      add(absl::StrCat("model.layers.", i, ".", std::string(kSiteNames[site])),
          linears[site]->matrix);
    }
  }
  return digests;
}

}  // namespace

int64_t ModelWeights::linear_weights() const {
  int64_t count = 0;
  for (const LayerWeights& layer : layers) {
    for (const LinearWeights* linear : {&layer.qkv, &layer.o, &layer.gate_up, &layer.down}) {
      count += linear->matrix.columns() * linear->matrix.depth();
    }
  }
  return count;
}

int64_t ModelWeights::linear_bytes() const {
  int64_t bytes = head.bytes();
  for (const LayerWeights& layer : layers) {
    bytes += layer.qkv.matrix.bytes() + layer.o.matrix.bytes() + layer.gate_up.matrix.bytes() +
             layer.down.matrix.bytes();
  }
  return bytes;
}

int64_t PackedModelBytes(const ModelConfig& config, DType dtype, const QuantisationPlan& plan) {
  const bool is_bf16 = dtype == DType::kBF16;
  const int64_t heads = config.num_heads + 2 * config.num_kv_heads;
  const int64_t columns[kNumSites] = {heads * config.head_dim, config.hidden_size,
                                      2 * config.intermediate_size, config.hidden_size};
  int64_t bytes = (config.tie_word_embeddings ? 1 : 2) *
                  PackedMatrix::BytesOf(config.vocab_size, config.hidden_size, is_bf16, plan.head);
  for (const LayerFormats& layer : plan.layers) {
    for (size_t site = 0; site < kNumSites; ++site) {
      bytes += PackedMatrix::BytesOf(columns[site], DepthOf(config, static_cast<Site>(site)),
                                     is_bf16, layer.sites[site]);
    }
  }
  return bytes;
}

absl::Status CheckModelTensors(const ModelConfig& config, const std::vector<HostTensor>& tensors,
                               DType dtype) {
  const std::vector<TensorSpec> want = ModelTensors(config, dtype);
  if (tensors.size() != want.size()) {
    return InvalidArgument(tensors.size(), " tensors, the model has ", want.size());
  }
  for (size_t i = 0; i < want.size(); ++i) {
    if (tensors[i].spec == want[i]) continue;
    return InvalidArgument("tensor ", i, " is ", tensors[i].spec.ToString(), ", want ",
                           want[i].ToString());
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<ModelWeights>> PackModelWeights(
    const ModelConfig& config, const std::vector<HostTensor>& tensors, DType dtype,
    const QuantisationPlan& plan, std::unique_ptr<ModelWeights> spare) {
  TANDEM_RETURN_IF_ERROR(CheckModelTensors(config, tensors, dtype));
  if (!spare) spare = std::make_unique<ModelWeights>();
  if (dtype == DType::kBF16) {
    PackAll<uint16_t>(config, tensors, plan, *spare);
  } else {
    PackAll<float>(config, tensors, plan, *spare);
  }
  if (plan.quantises()) spare->served_digests = DigestMatrices(*spare);
  return spare;
}

}  // namespace tandem::rollout
