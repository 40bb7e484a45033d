// Attention over the segments of a packed row: forward and backward in fp32, for one prompt with
// its completions and one key-value head, the unit of parallel work. Used by cpu_layer_ops.cc. Free
// of LibTorch.
//
//   s[i, j]: the score (attention_form.h)
//   P[i, j] = exp(s[i, j] - lse_i)   over j in the prefix and j <= i in the own segment, of them
//                                    the last `window`
//   o_i     = sum_j P[i, j] v_j
#pragma once

#include <cstdint>
#include <span>

#include "trainer/experience/packed_rows.h"
#include "trainer/policy/attention_form.h"

namespace tandem::trainer {

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
void AttendForward(std::span<const Segment> part, int64_t kv_head, const AttentionForm& form,
                   const AttentionForwardArgs& args);
void AttendBackward(std::span<const Segment> part, int64_t kv_head, const AttentionForm& form,
                    const AttentionBackwardArgs& args);

}  // namespace tandem::trainer
