#include "rollout_server/engine/forward/adapter_weights.h"

#include <algorithm>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "common/base/status_macros.h"
#include "common/lora/lora_change.h"
#include "common/lora/lora_merge.h"
#include "common/matrix/packed_matrix.h"
#include "common/model/forward_kernels.h"
#include "common/tensor/nearest_cast.h"
#include "common/weights/digest.h"

namespace tandem::rollout {
namespace {

constexpr int64_t kTile = PackedMatrix::kTileColumns;
static_assert(kTile == kLowRankColumns);

// Where the outputs of a module stand in the engine.
struct ModulePlace {
  int64_t layer = 0;
  std::optional<Site> site;                // none: the head
  std::function<int64_t(int64_t)> column;  // of an output feature
};

// Gates and their ups stand side by side in each tile (PackGateUp).
int64_t GateColumn(int64_t feature) {
  constexpr int64_t kWidth = PackedMatrix::kPanelColumns;
  return feature / kWidth * kTile + feature % kWidth;
}

absl::StatusOr<ModulePlace> PlaceOf(const ModelConfig& config, const std::string& weight) {
  const auto from = [](int64_t first) { return [first](int64_t f) { return first + f; }; };
  if (weight == "lm_head.weight") return ModulePlace{0, std::nullopt, from(0)};
  const int64_t queries = config.num_heads * config.head_dim;
  const int64_t keys = config.num_kv_heads * config.head_dim, inner = config.intermediate_size;
  constexpr int64_t kWidth = PackedMatrix::kPanelColumns;
  const std::vector<std::string> parts = absl::StrSplit(weight, '.');
  ModulePlace place;
  if (parts.size() != 6 || !absl::SimpleAtoi(parts[2], &place.layer)) {
    return InvalidArgument("the adapter is of ", weight, ", which is no matrix of the engine");
  }
  const std::string& name = parts[4];
  if (name == "q_proj" || name == "qkv_proj") {
    place.site = Site::kQkv;
    place.column = from(0);
  } else if (name == "k_proj" || name == "v_proj") {
    place.site = Site::kQkv;
    place.column = from(name == "k_proj" ? queries : queries + keys);
  } else if (name == "o_proj" || name == "down_proj") {
    place.site = name == "o_proj" ? Site::kO : Site::kDown;
    place.column = from(0);
  } else if (name == "gate_proj") {
    place.site = Site::kGateUp;
    place.column = GateColumn;
  } else if (name == "up_proj") {
    place.site = Site::kGateUp;
    place.column = [](int64_t f) { return kWidth + GateColumn(f); };
  } else if (name == "gate_up_proj") {
    place.site = Site::kGateUp;
    place.column = [inner](int64_t f) {
      return f < inner ? GateColumn(f) : kWidth + GateColumn(f - inner);
    };
  } else {
    return InvalidArgument("the adapter is of ", weight, ", which is no matrix of the engine");
  }
  return place;
}

std::span<const float> Values(const HostTensor& tensor) {
  return {reinterpret_cast<const float*>(tensor.bytes.data()), tensor.bytes.size() / 4};
}

// Adds a module to what the adapter does to its matrix.
void AddModule(const LoraModule& module, const AdapterFactors& adapter, size_t m,
               const ModulePlace& place, AdapterMatrix& to) {
  const std::span<const float> a = Values(adapter.tensors[2 * m]);
  const std::span<const float> b = Values(adapter.tensors[2 * m + 1]);
  const int64_t first = to.rank, rank = adapter.rank;
  to.depth = module.in;
  to.rank += rank;
  to.a.insert(to.a.end(), a.begin(), a.end());
  for (int64_t feature = 0; feature < module.out; ++feature) {
    const int64_t column = place.column(feature);
    const auto tile = static_cast<size_t>(column / kTile);
    if (to.tiles.size() <= tile) to.tiles.resize(tile + 1);
    std::vector<AdapterMatrix::Part>& parts = to.tiles[tile];
    if (parts.empty() || parts.back().first != first) {
      parts.push_back({first, rank, std::ssize(to.b)});
      to.b.resize(to.b.size() + static_cast<size_t>(rank * kTile));
    }
    float* const values = to.b.data() + parts.back().b + column % kTile;
    for (int64_t k = 0; k < rank; ++k) {
      values[k * kTile] = adapter.scaling * b[static_cast<size_t>(feature * rank + k)];
    }
  }
}

}  // namespace

absl::StatusOr<AdapterFactors> FactorsOf(const LoraAdapter& adapter) {
  AdapterFactors factors = {.modules = adapter.modules,
                            .tensors = {},
                            .rank = adapter.options.rank,
                            .scaling = adapter.options.scaling()};
  for (const HostTensor& tensor : adapter.tensors) {
    TANDEM_ASSIGN_OR_RETURN(HostTensor wide, CastNearest(tensor, DType::kF32));
    factors.tensors.push_back(Aligned(std::move(wide)));
  }
  return factors;
}

absl::StatusOr<std::shared_ptr<const AdapterWeights>> PackAdapter(const ModelConfig& config,
                                                                  const AdapterFactors& adapter,
                                                                  uint64_t id) {
  auto packed = std::make_shared<AdapterWeights>();
  packed->id = id;
  packed->layers.resize(static_cast<size_t>(config.num_layers));
  for (size_t m = 0; m < adapter.modules.size(); ++m) {
    const LoraModule& module = adapter.modules[m];
    TANDEM_ASSIGN_OR_RETURN(const ModulePlace place, PlaceOf(config, module.weight));
    AdapterMatrix& matrix =
        place.site
            ? packed->layers[static_cast<size_t>(place.layer)][static_cast<size_t>(*place.site)]
            : packed->head;
    AddModule(module, adapter, m, place, matrix);
    packed->largest_rank = std::max(packed->largest_rank, matrix.rank);
  }
  return packed;
}

std::string UnmergedDigest(const std::string& weight, std::span<const std::byte> a,
                           std::span<const std::byte> b) {
  return CombinedDigest({{"a", Digest128(a)}, {"b", Digest128(b)}, {"w", weight}});
}

double SquaredChange(const AdapterFactors& adapter, size_t m) {
  const LoraFactors factors = {Values(adapter.tensors[2 * m]).data(),
                               Values(adapter.tensors[2 * m + 1]).data(), adapter.rank,
                               adapter.modules[m].in, adapter.scaling};
  return ChangeProduct(factors, factors, adapter.modules[m].out);
}

}  // namespace tandem::rollout
