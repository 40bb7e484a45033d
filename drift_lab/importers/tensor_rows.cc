#include "drift_lab/importers/tensor_rows.h"

#include <bit>
#include <cmath>
#include <cstring>
#include <utility>

#include "common/base/status_macros.h"
#include "common/model/safetensors.h"
#include "nlohmann/json.hpp"

namespace tandem::drift {
namespace {

using nlohmann::json;

template <typename T>
T At(const HostTensor& tensor, int64_t index) {
  T value;
  std::memcpy(&value, tensor.bytes.data() + static_cast<size_t>(index) * sizeof(T), sizeof(T));
  return value;
}

float FromHalf(uint16_t bits) {
  const int exponent = (bits >> 10) & 31;
  const auto fraction = static_cast<float>(bits & 1023);
  const float sign = (bits & 0x8000) != 0 ? -1.0f : 1.0f;
  if (exponent == 31) return fraction == 0 ? sign * INFINITY : NAN;
  if (exponent == 0) return sign * std::ldexp(fraction, -24);
  return sign * std::ldexp(1024 + fraction, exponent - 25);
}

// JSON has no such numbers; the importers take these texts.
json Number(double value) {
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value > 0 ? "Infinity" : "-Infinity";
  return value;
}

json Element(const HostTensor& tensor, int64_t index) {
  switch (tensor.spec.dtype) {
    case DType::kF32:
      return Number(At<float>(tensor, index));
    case DType::kF64:
      return Number(At<double>(tensor, index));
    case DType::kBF16:
      return Number(std::bit_cast<float>(uint32_t{At<uint16_t>(tensor, index)} << 16));
    case DType::kF16:
      return Number(FromHalf(At<uint16_t>(tensor, index)));
    case DType::kI64:
      return At<int64_t>(tensor, index);
    case DType::kI32:
      return At<int32_t>(tensor, index);
    case DType::kI16:
      return At<int16_t>(tensor, index);
    case DType::kI8:
      return At<int8_t>(tensor, index);
    case DType::kU8:
    case DType::kBool:
      return At<uint8_t>(tensor, index);
  }
  return nullptr;
}

}  // namespace

absl::StatusOr<TensorRows> TensorRows::Open(const std::string& path) {
  TANDEM_ASSIGN_OR_RETURN(SafetensorsFile file, ReadSafetensors(path));
  TensorRows rows;
  for (HostTensor& tensor : file.tensors) {
    const std::vector<int64_t>& shape = tensor.spec.shape;
    if (shape.empty() || shape.size() > 2) {
      return InvalidArgument(path, ": expected tensors [sequences, tokens] or [sequences], found ",
                             tensor.spec.ToString());
    }
    if (!rows.tensors_.empty() && shape[0] != rows.num_rows_) {
      return InvalidArgument(path, ": expected ", rows.num_rows_, " rows, as ",
                             rows.tensors_.front().spec.name, " has, found ",
                             tensor.spec.ToString());
    }
    rows.num_rows_ = shape[0];
    rows.tensors_.push_back(std::move(tensor));
  }
  return rows;
}

json TensorRows::Row(int64_t row) const {
  json item = json::object();
  for (const HostTensor& tensor : tensors_) {
    if (tensor.spec.shape.size() == 1) {
      item[tensor.spec.name] = Element(tensor, row);
      continue;
    }
    json values = json::array();
    for (int64_t t = 0; t < tensor.spec.shape[1]; ++t) {
      values.push_back(Element(tensor, row * tensor.spec.shape[1] + t));
    }
    item[tensor.spec.name] = std::move(values);
  }
  return item;
}

}  // namespace tandem::drift
