#include "rollout_server/engine/forward/model_weights.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/matrix/stored_row.h"
#include "common/model/formats/stored_tensors.h"
#include "common/process/thread_team.h"
#include "common/tensor/bf16_rounding.h"
#include "common/weights/digest.h"

namespace tandem::rollout {
namespace {

using TensorsByName = std::map<std::string, const HostTensor*>;

// Reads the elements of the model's tensors as T (float, or uint16_t for bf16).
template <typename T>
class Source {
 public:
  explicit Source(const TensorsByName& tensors) : tensors_(tensors) {}

  // Is this matrix given as stored rows (stored_row.h)?
  bool IsStored(const std::string& name) const {
    return tensors_.at(name)->spec.dtype == DType::kU8;
  }

  // Pointers to the rows [begin, end) of a matrix, of T [O, I] or of bytes [O, stored bytes].
  template <typename Row>
  void AppendRows(const std::string& name, int64_t begin, int64_t end,
                  std::vector<const Row*>& rows) {
    const HostTensor& tensor = *tensors_.at(name);
    const Row* data = nullptr;
    if constexpr (std::is_same_v<Row, T>) {
      data = Data(tensor);
    } else {
      data = reinterpret_cast<const Row*>(tensor.bytes.data());
    }
    for (int64_t o = begin; o < end; ++o) rows.push_back(data + o * tensor.spec.shape[1]);
  }
  template <typename Row>
  void AppendRows(const std::string& name, std::vector<const Row*>& rows) {
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

  const TensorsByName& tensors_;
  std::map<std::string, std::vector<T>> copies_;
};

// A row of zeros.
template <typename Row>
std::vector<Row> ZeroRow(const WeightFormat& format, int64_t depth) {
  if constexpr (!std::is_same_v<Row, uint8_t>) return std::vector<Row>(depth);
  const std::vector<float> zeros(depth);
  std::vector<uint8_t> row(StoredRowBytes(format, depth));
  StoreRow(format, zeros.data(), depth, row.data());
  return {row.begin(), row.end()};
}

// Calls pack with the type of the rows of matrix `name`: T, or bytes.
template <typename T, typename Pack>
void WithRows(const Source<T>& source, const std::string& name, const Pack& pack) {
  if (source.IsStored(name)) {
    pack(std::type_identity<uint8_t>());
  } else {
    pack(std::type_identity<T>());
  }
}

// Packs several projections of one input as one matrix.
template <typename T>
void PackLinear(Source<T>& source, const std::string& prefix, const std::vector<std::string>& names,
                bool has_bias, int64_t depth, const WeightFormat& format, LinearWeights& out) {
  out.bias.clear();
  for (const std::string& name : names) {
    if (has_bias) source.AppendVector(absl::StrCat(prefix, name, ".bias"), out.bias);
  }
  WithRows(source, absl::StrCat(prefix, names.front(), ".weight"),
           [&]<typename Row>(std::type_identity<Row>) {
             std::vector<const Row*> rows;
             for (const std::string& name : names) {
               source.AppendRows(absl::StrCat(prefix, name, ".weight"), rows);
             }
             out.matrix.Pack(std::span<const Row* const>(rows), depth, format);
           });
}

// Gates and ups side by side in each tile: calls take(part, i) for every output of the matrix, with
// part 0 for gates and 1 for ups, and i past the last feature for padding.
template <typename Take>
void VisitGateUp(const ModelConfig& config, const Take& take) {
  constexpr int64_t kWidth = PackedMatrix::kPanelColumns;
  for (int64_t first = 0; first < config.intermediate_size; first += kWidth) {
    for (size_t part = 0; part < 2; ++part) {
      for (int64_t i = first; i < first + kWidth; ++i) take(part, i);
    }
  }
}

// Packs gates and ups side by side in each tile, so that SwiGLU can be applied to a finished tile.
template <typename T>
void PackGateUp(const ModelConfig& config, Source<T>& source, const std::string& mlp,
                const WeightFormat& format, LinearWeights& out) {
  const int64_t inner = config.intermediate_size, depth = config.hidden_size;
  const bool fused = config.fused_gate_up;
  out.bias.clear();
  if (config.mlp_bias) {
    const std::vector<float> bias[2] = {source.Vector(mlp + "gate_proj.bias"),
                                        source.Vector(mlp + "up_proj.bias")};
    VisitGateUp(config, [&](size_t part, int64_t i) {
      out.bias.push_back(i < inner ? bias[part][static_cast<size_t>(i)] : 0.0f);
    });
  }
  WithRows(source, mlp + (fused ? "gate_up_proj.weight" : "gate_proj.weight"),
           [&]<typename Row>(std::type_identity<Row>) {
             std::vector<const Row*> parts[2], rows;
             for (size_t part = 0; part < 2; ++part) {
               if (fused) {
                 const int64_t first = static_cast<int64_t>(part) * inner;
                 source.AppendRows(mlp + "gate_up_proj.weight", first, first + inner, parts[part]);
               } else {
                 source.AppendRows(mlp + (part == 0 ? "gate_proj.weight" : "up_proj.weight"),
                                   parts[part]);
               }
             }
             const std::vector<Row> zeros = ZeroRow<Row>(format, depth);
             VisitGateUp(config, [&](size_t part, int64_t i) {
               rows.push_back(i < inner ? parts[part][static_cast<size_t>(i)] : zeros.data());
             });
             out.matrix.Pack(std::span<const Row* const>(rows), depth, format);
           });
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

// Embedding and head, and every layer, are packed by different threads of `team`.
template <typename T>
void PackAll(const ModelConfig& config, const TensorsByName& tensors, const QuantisationPlan& plan,
             ThreadTeam& team, ModelWeights& out) {
  const auto pack_table = [&](const std::string& name, PackedMatrix& matrix) {
    Source<T> source(tensors);
    WithRows(source, name, [&]<typename Row>(std::type_identity<Row>) {
      std::vector<const Row*> rows;
      source.AppendRows(name, rows);
      matrix.Pack(std::span<const Row* const>(rows), config.hidden_size, plan.head);
    });
  };
  const bool tied = config.tie_word_embeddings;
  constexpr int64_t kTables = 2;
  out.layers.resize(config.num_layers);
  out.activations = plan.activations;
  out.final_norm = Source<T>(tensors).Norm("model.", "norm", config.norm_offset);
  team.Run([&](ThreadTeam::Member& member) {
    member.ForEach(kTables + config.num_layers, [&](int64_t item) {
      if (item == 0) {
        pack_table(tied ? "model.embed_tokens.weight" : "lm_head.weight", out.head);
      } else if (item == 1) {
        if (!tied) pack_table("model.embed_tokens.weight", out.embedding);
      } else {
        const auto layer = static_cast<size_t>(item - kTables);
        Source<T> source(tensors);
        PackLayer(config, source, item - kTables, plan.layers[layer], out.layers[layer]);
      }
    });
  });
}

DigestMap DigestMatrices(const ModelWeights& weights, ThreadTeam& team) {
  std::vector<std::pair<std::string, const PackedMatrix*>> matrices = {{"head", &weights.head}};
  if (weights.embedding.columns() > 0) matrices.emplace_back("embedding", &weights.embedding);
  for (size_t i = 0; i < weights.layers.size(); ++i) {
    const LayerWeights& layer = weights.layers[i];
    const LinearWeights* const linears[kNumSites] = {&layer.qkv, &layer.o, &layer.gate_up,
                                                     &layer.down};
    for (size_t site = 0; site < kNumSites; ++site) {
      matrices.emplace_back(absl::StrCat("model.layers.", i, ".", std::string(kSiteNames[site])),
                            &linears[site]->matrix);
    }
  }
  std::vector<std::string> digests(matrices.size());
  team.Run([&](ThreadTeam::Member& member) {
    member.ForEach(std::ssize(matrices), [&](int64_t i) {
      const auto at = static_cast<size_t>(i);
      digests[at] = Digest128(std::as_bytes(matrices[at].second->stored()));
    });
  });
  DigestMap by_name;
  for (size_t i = 0; i < matrices.size(); ++i) by_name[matrices[i].first] = std::move(digests[i]);
  return by_name;
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
                               DType dtype, const QuantisationPlan& plan) {
  const bool stored = std::ranges::any_of(
      tensors, [](const HostTensor& tensor) { return tensor.spec.dtype == DType::kU8; });
  const std::vector<TensorSpec> want =
      stored ? StoredTensors(config, dtype, plan) : ModelTensors(config, dtype);
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
    const QuantisationPlan& plan, std::unique_ptr<ModelWeights> spare, int num_threads) {
  TANDEM_RETURN_IF_ERROR(CheckModelTensors(config, tensors, dtype, plan));
  if (!spare) spare = std::make_unique<ModelWeights>();
  TensorsByName by_name;
  for (const HostTensor& tensor : tensors) by_name[tensor.spec.name] = &tensor;
  ThreadTeam team(num_threads);
  if (dtype == DType::kBF16) {
    PackAll<uint16_t>(config, by_name, plan, team, *spare);
  } else {
    PackAll<float>(config, by_name, plan, team, *spare);
  }
  if (plan.quantises()) spare->served_digests = DigestMatrices(*spare, team);
  return spare;
}

}  // namespace tandem::rollout
