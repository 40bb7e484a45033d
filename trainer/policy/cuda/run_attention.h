// Attention of runs of queries, each over a run of keys: LibTorch's flash attention on a GPU in
// bfloat16, plain tensor operations otherwise. Used by device_layer_ops.cc.
//
// The idea: the keys of a query may lie in several runs, in calls of their own: a completion
// attends to its prompt and to itself. Outputs of the calls merge by their lse. The backward pass
// of each call gets the merged output and lse and returns its part of the gradients, because P =
// exp(S - lse) and D = rowsum(out_grad out) of flash attention's backward (Dao 2023, algorithm 2)
// are then those of all keys.
//
// Deterministic. Memory: that of flash attention, per block; otherwise [H, queries, keys] float32
// of a run. Exceptions of LibTorch pass through.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "trainer/policy/layer_ops.h"

namespace tandem::trainer {

// Run r has queries [query_ends[r - 1], query_ends[r]), from 0, and keys likewise. No run is empty.
struct AttentionRuns {
  AttentionRuns() = default;
  // `causal`: a run has as many keys as queries, and each query attends to the keys up to its own.
  AttentionRuns(const std::vector<int32_t>& query_ends, const std::vector<int32_t>& key_ends,
                bool causal, const at::Device& device);

  std::vector<int32_t> query_ends, key_ends;
  bool causal = false;
  // The same in the form that flash attention takes: [runs + 1] int32, from 0, on the device.
  at::Tensor device_query_ends, device_key_ends;
  int64_t longest_query = 0, longest_key = 0;
};

// q [Nq, H, D], k and v [Nk, Hkv, D] of one dtype -> out as q, lse [H, Nq] float32. Scores are
// q k scale. Flash attention takes D % 8 == 0, D <= 256.
Attention AttendRuns(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                     const AttentionRuns& runs, double scale);

// Gradients of the shapes and dtypes of q, k and v.
AttentionGrads AttendRunsBackward(const at::Tensor& out_grad, const at::Tensor& q,
                                  const at::Tensor& k, const at::Tensor& v,
                                  const Attention& attention, const AttentionRuns& runs,
                                  double scale);

}  // namespace tandem::trainer
