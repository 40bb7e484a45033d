// Attention of runs of queries, each over a run of keys: flash attention of LibTorch on a GPU in
// bfloat16, written out otherwise. What device_layer_ops.cc attends with.
//
// A query may have its keys in several runs of several calls: outputs merge by their lse, and each
// call's backward with the merged output and lse gives its share of the gradients, since P = exp(S
// - lse) and D = rowsum(out_grad out) of flash attention's backward (Dao 2023, algorithm 2) are
// then those of all keys.
//
// Deterministic. Memory: flash, what it keeps per block; written out, [H, queries, keys] float32 of
// a run. Exceptions of LibTorch pass through.
#ifndef TANDEM_TRAINER_POLICY_CUDA_RUN_ATTENTION_H_
#define TANDEM_TRAINER_POLICY_CUDA_RUN_ATTENTION_H_

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "trainer/policy/layer_ops.h"

namespace tandem::trainer {

// Run r: queries [query_ends[r - 1], query_ends[r]), keys likewise; from 0, none of them empty.
struct AttentionRuns {
  AttentionRuns() = default;
  // `causal`: as many keys as queries; each query sees the keys up to its own.
  AttentionRuns(const std::vector<int32_t>& query_ends, const std::vector<int32_t>& key_ends,
                bool causal, const at::Device& device);

  std::vector<int32_t> query_ends, key_ends;
  bool causal = false;
  // The same as flash attention takes it: [runs + 1] int32, from 0, on the device.
  at::Tensor device_query_ends, device_key_ends;
  int64_t longest_query = 0, longest_key = 0;
};

// q [Nq, H, D], k and v [Nk, Hkv, D] of one dtype -> out as q, lse [H, Nq] float32. Scores are
// q k / sqrt(D). Flash attention takes D % 8 == 0, D <= 256.
Attention AttendRuns(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                     const AttentionRuns& runs);

// Gradients, as q, k and v.
AttentionGrads AttendRunsBackward(const at::Tensor& out_grad, const at::Tensor& q,
                                  const at::Tensor& k, const at::Tensor& v,
                                  const Attention& attention, const AttentionRuns& runs);

}  // namespace tandem::trainer

#endif  // TANDEM_TRAINER_POLICY_CUDA_RUN_ATTENTION_H_
