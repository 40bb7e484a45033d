#include "rollout_server/engine/forward/model_weights.h"

#include <cstring>
#include <map>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/tensor/bf16_rounding.h"

namespace tandem::rollout {
namespace {

// Reads the elements of the model's tensors as T (float, or uint16_t for bf16).
template <typename T>
class Source {
 public:
  explicit Source(const std::vector<HostTensor>& tensors) {
    for (const HostTensor& tensor : tensors) tensors_[tensor.spec.name] = &tensor;
  }

  // Pointers to the rows of a matrix [O, I].
  void AppendRows(const std::string& name, std::vector<const T*>& rows) {
    const HostTensor& tensor = *tensors_.at(name);
    const T* data = Data(tensor);
    for (int64_t o = 0; o < tensor.spec.shape[0]; ++o) {
      rows.push_back(data + o * tensor.spec.shape[1]);
    }
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
                bool has_bias, int64_t depth, LinearWeights& out) {
  std::vector<const T*> rows;
  out.bias.clear();
  for (const std::string& name : names) {
    source.AppendRows(absl::StrCat(prefix, name, ".weight"), rows);
    if (has_bias) source.AppendVector(absl::StrCat(prefix, name, ".bias"), out.bias);
  }
  out.matrix.Pack(std::span<const T* const>(rows), depth);
}

// Packs gates and ups side by side in each tile, so that SwiGLU can be applied to a finished tile.
template <typename T>
void PackGateUp(const ModelConfig& config, Source<T>& source, const std::string& mlp,
                LinearWeights& out) {
  constexpr int64_t kWidth = PackedMatrix::kPanelColumns;
  const std::string gate = mlp + "gate_proj", up = mlp + "up_proj";
  std::vector<const T*> gate_rows, up_rows, rows;
  source.AppendRows(gate + ".weight", gate_rows);
  source.AppendRows(up + ".weight", up_rows);
  std::vector<float> gate_bias(gate_rows.size()), up_bias(up_rows.size());
  if (config.mlp_bias) {
    gate_bias = source.Vector(gate + ".bias");
    up_bias = source.Vector(up + ".bias");
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
  out.matrix.Pack(std::span<const T* const>(rows), config.hidden_size);
}

template <typename T>
void PackLayer(const ModelConfig& config, Source<T>& source, int64_t index, LayerWeights& out) {
  const std::string layer = absl::StrCat("model.layers.", index, ".");
  const std::string attention = layer + "self_attn.", mlp = layer + "mlp.";
  out.input_norm = source.Vector(layer + "input_layernorm.weight");
  out.post_norm = source.Vector(layer + "post_attention_layernorm.weight");
  if (config.qk_norm) {
    out.q_norm = source.Vector(attention + "q_norm.weight");
    out.k_norm = source.Vector(attention + "k_norm.weight");
  }
  PackLinear(source, attention, {"q_proj", "k_proj", "v_proj"}, config.attention_qkv_bias,
             config.hidden_size, out.qkv);
  PackLinear(source, attention, {"o_proj"}, config.attention_o_bias,
             config.num_heads * config.head_dim, out.o);
  PackGateUp(config, source, mlp, out.gate_up);
  PackLinear(source, mlp, {"down_proj"}, config.mlp_bias, config.intermediate_size, out.down);
}

template <typename T>
void PackAll(const ModelConfig& config, const std::vector<HostTensor>& tensors, ModelWeights& out) {
  Source<T> source(tensors);
  std::vector<const T*> embedding, head;
  source.AppendRows("model.embed_tokens.weight", embedding);
  if (config.tie_word_embeddings) {
    head = embedding;
  } else {
    source.AppendRows("lm_head.weight", head);
    out.embedding.Pack(std::span<const T* const>(embedding), config.hidden_size);
  }
  out.head.Pack(std::span<const T* const>(head), config.hidden_size);
  out.layers.resize(config.num_layers);
  for (int64_t i = 0; i < config.num_layers; ++i) PackLayer(config, source, i, out.layers[i]);
  out.final_norm = source.Vector("model.norm.weight");
}

}  // namespace

int64_t ModelWeights::linear_bytes() const {
  int64_t bytes = head.bytes();
  for (const LayerWeights& layer : layers) {
    bytes += layer.qkv.matrix.bytes() + layer.o.matrix.bytes() + layer.gate_up.matrix.bytes() +
             layer.down.matrix.bytes();
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
    std::unique_ptr<ModelWeights> spare) {
  TANDEM_RETURN_IF_ERROR(CheckModelTensors(config, tensors, dtype));
  if (!spare) spare = std::make_unique<ModelWeights>();
  if (dtype == DType::kBF16) {
    PackAll<uint16_t>(config, tensors, *spare);
  } else {
    PackAll<float>(config, tensors, *spare);
  }
  return spare;
}

}  // namespace tandem::rollout
