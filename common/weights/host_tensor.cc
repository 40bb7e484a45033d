#include "common/weights/host_tensor.h"

#include <array>
#include <cstdint>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/status_macros.h"

namespace tandem {
namespace {

struct DTypeRow {
  DType dtype;
  std::string_view name;
  int64_t bytes;
};

// In the order of the enum DType.
constexpr std::array<DTypeRow, 10> kDTypes = {{
    {DType::kF32, "F32", 4},
    {DType::kBF16, "BF16", 2},
    {DType::kF16, "F16", 2},
    {DType::kF64, "F64", 8},
    {DType::kI64, "I64", 8},
    {DType::kI32, "I32", 4},
    {DType::kI16, "I16", 2},
    {DType::kI8, "I8", 1},
    {DType::kU8, "U8", 1},
    {DType::kBool, "BOOL", 1},
}};

const DTypeRow& Row(DType dtype) { return kDTypes.at(static_cast<size_t>(dtype)); }

}  // namespace

int64_t DTypeBytes(DType dtype) { return Row(dtype).bytes; }

bool IsFloat(DType dtype) {
  return dtype == DType::kF32 || dtype == DType::kBF16 || dtype == DType::kF16 ||
         dtype == DType::kF64;
}

std::string_view DTypeName(DType dtype) { return Row(dtype).name; }

absl::StatusOr<DType> DTypeFromName(std::string_view name) {
  for (const DTypeRow& row : kDTypes) {
    if (row.name == name) return row.dtype;
  }
  const auto append_name = [](std::string* out, const DTypeRow& row) {
    absl::StrAppend(out, std::string(row.name));
  };
  return InvalidArgument("dtype '", name, "' is not supported; one of ",
                         absl::StrJoin(kDTypes, ", ", append_name));
}

int64_t TensorSpec::num_elements() const {
  int64_t count = 1;
  for (const int64_t size : shape) count *= size;
  return count;
}

std::string TensorSpec::ToString() const {
  return absl::StrCat(name, " ", std::string(DTypeName(dtype)), " [", absl::StrJoin(shape, ", "),
                      "]");
}

HostTensor Aligned(HostTensor tensor) {
  const auto address = reinterpret_cast<uintptr_t>(tensor.bytes.data());
  if (address % static_cast<uintptr_t>(DTypeBytes(tensor.spec.dtype)) == 0) return tensor;
  const auto copy =
      std::make_shared<std::vector<std::byte>>(tensor.bytes.begin(), tensor.bytes.end());
  tensor.bytes = *copy;
  tensor.owner = copy;
  return tensor;
}

}  // namespace tandem
