// AttentionForm: what the attention of a layer computes beside its queries, keys and values. Used by
// layer_ops.h and by the CPU kernel, which is free of LibTorch.
#pragma once

#include <cstdint>

namespace tandem::trainer {

// The score of query i and key j is s = scale q_i . k_j, or softcap tanh(s / softcap) where there is
// a soft cap. A query sees the keys up to its own, of them the last `window` where there is one.
struct AttentionForm {
  int64_t num_heads = 0;  // H; H / num_kv_heads query heads share a key-value head
  int64_t num_kv_heads = 0;
  int64_t head_dim = 0;  // D
  float scale = 1;       // 1 / sqrt(D) in most models
  int64_t window = 0;    // tokens; 0: no bound
  float softcap = 0;     // 0: none
};

}  // namespace tandem::trainer
