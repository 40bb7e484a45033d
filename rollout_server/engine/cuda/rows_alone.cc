#include "rollout_server/engine/cuda/rows_alone.h"
#include "common/base/status_macros.h"

#include <algorithm>
#include <string>

namespace tandem::rollout::cuda {

absl::Status CheckRowsAlone(
    std::string_view kernel, int64_t rows,
    absl::FunctionRef<std::vector<uint8_t>(int64_t first, int64_t count)> compute) {
  const std::vector<uint8_t> together = compute(0, rows);
  const auto each = static_cast<int64_t>(together.size()) / rows;
  for (const int64_t count : {1, 3, 17}) {
    for (int64_t first = 0; first + count <= rows; first += count) {
      const std::vector<uint8_t> some = compute(first, count);
      if (static_cast<int64_t>(some.size()) != count * each) {
        return Internal(std::string(kernel), ": ", some.size(), " bytes for ", count, " rows of ",
                        each);
      }
      if (std::equal(some.begin(), some.end(), together.begin() + first * each)) continue;
      return FailedPrecondition(
          "this device does not keep the promise of numerics invariant: ", std::string(kernel),
          " gives row ", first, " of ", rows, " other bits with ", count - 1,
          " others than with all. Use numerics fast, or device cpu, and please report the device");
    }
  }
  return absl::OkStatus();
}

}  // namespace tandem::rollout::cuda
