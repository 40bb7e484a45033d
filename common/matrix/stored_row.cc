#include "common/matrix/stored_row.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "common/base/check.h"
#include "common/matrix/quantise.h"
#include "common/tensor/bf16_rounding.h"

namespace tandem {
namespace {

int64_t Groups(const WeightFormat& format, int64_t depth) {
  return (depth + format.group - 1) / format.group;
}

void StoreInt4(const WeightFormat& format, const float* row, int64_t depth, uint8_t* out) {
  std::vector<int8_t> values(static_cast<size_t>(format.group));
  for (int64_t first = 0; first < depth; first += format.group) {
    const int64_t here = std::min(format.group, depth - first);
    const uint16_t scale = NearestBf16(QuantiseInt4(row + first, here, values.data()));
    std::memcpy(out + depth / 2 + first / format.group * 2, &scale, sizeof(scale));
    for (int64_t k = 0; k < here; k += 2) {
      const auto at = static_cast<size_t>(k);
      out[(first + k) / 2] = static_cast<uint8_t>((values[at] + 8) | (values[at + 1] + 8) << 4);
    }
  }
}

}  // namespace

int64_t StoredRowBytes(const WeightFormat& format, int64_t depth) {
  if (format.scheme == WeightScheme::kInt4Group) return depth / 2 + 2 * Groups(format, depth);
  return depth + 4;
}

void StoreRow(const WeightFormat& format, const float* row, int64_t depth, uint8_t* out) {
  float scale = 0;
  switch (format.scheme) {
    case WeightScheme::kWide:
      TANDEM_CHECK(false);
      return;
    case WeightScheme::kInt8:
      scale = QuantiseInt8(row, depth, reinterpret_cast<int8_t*>(out));
      break;
    case WeightScheme::kFp8E4m3:
      scale = QuantiseE4m3(row, depth, out);
      break;
    case WeightScheme::kInt4Group:
      StoreInt4(format, row, depth, out);
      return;
  }
  std::memcpy(out + depth, &scale, sizeof(scale));
}

void LoadInt4(const uint8_t* row, int64_t first, int64_t n, int8_t* values) {
  for (int64_t k = 0; k < n; k += 2) {
    const uint8_t pair = row[(first + k) / 2];
    values[k] = static_cast<int8_t>((pair & 15) - 8);
    values[k + 1] = static_cast<int8_t>((pair >> 4) - 8);
  }
}

}  // namespace tandem
