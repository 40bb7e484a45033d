#include "common/model/formats/stored_tensors.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "common/matrix/stored_row.h"
#include "common/tensor/bf16_rounding.h"

namespace tandem {
namespace {

std::optional<Site> SiteOf(const std::string& projection) {
  if (projection == "q_proj" || projection == "k_proj" || projection == "v_proj") return Site::kQkv;
  if (projection == "gate_proj" || projection == "up_proj") return Site::kGateUp;
  const auto found = std::ranges::find(kSiteNames, projection);
  if (found == std::end(kSiteNames)) return std::nullopt;
  return static_cast<Site>(found - kSiteNames);
}

}  // namespace

WeightFormat FormatOf(const QuantisationPlan& plan, const std::string& name) {
  if (name == "lm_head.weight" || name == "model.embed_tokens.weight") return plan.head;
  // model.layers.3.mlp.down_proj.weight
  const std::vector<std::string> parts = absl::StrSplit(name, '.');
  size_t layer = 0;
  if (parts.size() != 6 || parts.back() != "weight" || !absl::SimpleAtoi(parts[2], &layer) ||
      layer >= plan.layers.size()) {
    return {};
  }
  const std::optional<Site> site = SiteOf(parts[4]);
  return site ? plan.layers[layer].at(*site) : WeightFormat();
}

std::vector<TensorSpec> StoredTensors(const ModelConfig& config, DType dtype,
                                      const QuantisationPlan& plan) {
  std::vector<TensorSpec> specs = ModelTensors(config, dtype);
  for (TensorSpec& spec : specs) {
    const WeightFormat format = FormatOf(plan, spec.name);
    if (format.scheme == WeightScheme::kWide || spec.shape.size() != 2) continue;
    spec = {spec.name, DType::kU8, {spec.shape[0], StoredRowBytes(format, spec.shape[1])}};
  }
  return specs;
}

HostTensor StoreTensor(const HostTensor& tensor, const WeightFormat& format) {
  if (format.scheme == WeightScheme::kWide || tensor.spec.shape.size() != 2) return tensor;
  const int64_t rows = tensor.spec.shape[0], depth = tensor.spec.shape[1];
  const int64_t row_bytes = StoredRowBytes(format, depth);
  const auto bytes =
      std::make_shared<std::vector<std::byte>>(static_cast<size_t>(rows * row_bytes));
  const bool bf16 = tensor.spec.dtype == DType::kBF16;
  std::vector<float> row(static_cast<size_t>(depth));
  for (int64_t r = 0; r < rows; ++r) {
    const std::byte* const from = tensor.bytes.data() + r * depth * (bf16 ? 2 : 4);
    for (int64_t k = 0; k < depth; ++k) {
      if (bf16) {
        uint16_t bits = 0;
        std::memcpy(&bits, from + 2 * k, sizeof(bits));
        row[static_cast<size_t>(k)] = Bf16ToFloat(bits);
      } else {
        std::memcpy(&row[static_cast<size_t>(k)], from + 4 * k, sizeof(float));
      }
    }
    StoreRow(format, row.data(), depth, reinterpret_cast<uint8_t*>(bytes->data()) + r * row_bytes);
  }
  return {{tensor.spec.name, DType::kU8, {rows, row_bytes}}, *bytes, bytes};
}

}  // namespace tandem
