// Attention over the segments of a packed row: forward and backward in fp32, for one prompt with
// its completions and one key-value head, the unit of parallel work. Used by cpu_layer_ops.cc. Free
// of LibTorch.
//
//   P[i, j] = exp(scale q_i . k_j - lse_i)   over j in the prefix and j <= i in the own segment
//   o_i     = sum_j P[i, j] v_j
#pragma once

#include <cstdint>
#include <span>

#include "trainer/experience/packed_rows.h"

namespace tandem::trainer {

struct AttentionShape {
  int64_t num_heads = 0;  // H; H / num_kv_heads query heads share a key-value head
  int64_t num_kv_heads = 0;
  int64_t head_dim = 0;  // D
  float scale = 1;       // 1 / sqrt(D)
};

// All row-major: q, out and their gradients [T, H, D], k, v and theirs [T, KV, D], lse [T, H].
struct AttentionForwardArgs {
  const float *q, *k, *v;
  float *out, *lse;
};
struct AttentionBackwardArgs {
  const float *q, *k, *v, *out, *lse, *out_grad;
  float *q_grad, *k_grad, *v_grad;  // overwritten
};

// One part of the row and one key-value head. Calls for different (part, head) touch disjoint
// memory.
void AttendForward(std::span<const Segment> part, int64_t kv_head, const AttentionShape& shape,
                   const AttentionForwardArgs& args);
void AttendBackward(std::span<const Segment> part, int64_t kv_head, const AttentionShape& shape,
                    const AttentionBackwardArgs& args);

}  // namespace tandem::trainer
