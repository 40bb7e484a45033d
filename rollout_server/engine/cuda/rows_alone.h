// CheckRowsAlone: does a kernel give a row the same bits alone and in larger batches? Pure.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"

namespace tandem::rollout::cuda {

// compute(first, count) computes rows [first, first + count) together and returns their bytes,
// equally many for each row. Compares one call of all `rows` with calls of 1, 3 and 17 rows.
//   FAILED_PRECONDITION  a row's bytes differ; names `kernel` and the row
//   INTERNAL             a call gave another number of bytes
absl::Status CheckRowsAlone(
    std::string_view kernel, int64_t rows,
    absl::FunctionRef<std::vector<uint8_t>(int64_t first, int64_t count)> compute);

}  // namespace tandem::rollout::cuda
