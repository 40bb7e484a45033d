// Targets: which tokens of a row have log-probs, and where the values for them come from and go to.
// Used by policy.cc.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "trainer/experience/packed_rows.h"

namespace tandem::trainer {

// Tokens whose log-probs are wanted, and the rows that predict them.
struct Targets {
  std::vector<int64_t> positions;  // where they stand in the row
  std::vector<int64_t> sources;    // the row that predicts each
  std::vector<int64_t> tokens;
  std::vector<SupportView> support;  // of each, or no elements
};

//   INVALID_ARGUMENT  an id outside the vocabulary; a target with nothing before it
absl::StatusOr<Targets> FindTargets(const PackedRow& row, int64_t vocabulary);

// values [R] at `positions` of zeros [num_tokens]; on the host, wherever the values are.
at::Tensor SpreadOverRow(const at::Tensor& values, const std::vector<int64_t>& positions,
                         int64_t num_tokens);

// of_row [T] at `positions`, [R], on `device`.
at::Tensor OfTargets(const at::Tensor& of_row, const std::vector<int64_t>& positions,
                     at::Device device);

}  // namespace tandem::trainer
