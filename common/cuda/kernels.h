// Kernels of the forward pass on a CUDA device: the engine's (stage 2), and those that the trainer
// shares with it. They compute what common/model/forward_kernels.h computes, in the same precision:
// the residual stream, norms, rotary embedding, softmax and sums are fp32, and the inputs of the
// next linear layer are stored in the dtype of its weights.
//
// Pointers are to device memory and contiguous unless said otherwise. A call enqueues the kernel on
// the stream and returns. The result of a row depends, bit for bit, on that row alone: the order of
// sums is fixed by the row's own length. The vocabulary is at most 2^20; rows and blocks may be as
// many as int64_t can index. Free of LibTorch and of CUDA headers. Thread-safe.
#pragma once

#include <cstdint>

struct CUstream_st;

namespace tandem::cuda {

using Stream = CUstream_st*;  // cudaStream_t

enum class Element { kFp32, kBf16 };
constexpr int64_t ElementBytes(Element element) { return element == Element::kFp32 ? 4 : 2; }

// The error of this process's last calls (a launch that was refused, a kernel that faulted), or
// null.
const char* KernelError();

// Copies whole KV blocks in all layers: block to[i] becomes a copy of block from[i]. The cache is
// [layers, blocks, block_bytes]. No block may be both a source and a destination.
struct CopyBlocks {
  void* cache = nullptr;
  int64_t layers = 0, blocks = 0, block_bytes = 0;  // block_bytes % 16 == 0
  const int32_t* from = nullptr;                    // [count] in host memory, as is `to`
  const int32_t* to = nullptr;
  int64_t count = 0;
};
void RunCopyBlocks(const CopyBlocks& task, Stream stream);

// hidden [N, E] fp32 = table [V, E] at rows `ids` [N].
void Embed(const void* table, Element element, const int32_t* ids, int64_t rows, int64_t width,
           float* hidden, Stream stream);

// hidden += delta + bias; then normed = hidden * rstd * weight, with rstd = 1 / sqrt(mean(hidden^2)
// + eps).
struct AddNorm {
  float* hidden = nullptr;        // [*, E] residual stream
  const float* delta = nullptr;   // [*, E], or null
  const float* bias = nullptr;    // [E], or null
  const float* weight = nullptr;  // [E]
  float eps = 0;
  const int64_t* chosen = nullptr;  // [N] distinct rows of hidden; null: rows 0 .. N - 1
  int64_t rows = 0, width = 0;      // N, E; E % 4 == 0
  void* normed = nullptr;           // [N, E]
  Element element = Element::kFp32;
  // [N, E] bf16, or null. Receives what rounding to bf16 left of each value, so that normed + rest
  // has 16 significand bits.
  void* rest = nullptr;
};
void RunAddNorm(const AddNorm& task, Stream stream);

// Adds biases, normalises heads (Qwen3), rotates and scales queries, rotates keys, and writes keys
// and values into their blocks.
struct RotateStore {
  const float* qkv = nullptr;     // [N, (H + 2 Hkv) D]: queries, keys, values
  const float* bias = nullptr;    // [(H + 2 Hkv) D], or null
  const float* q_norm = nullptr;  // [D], or null
  const float* k_norm = nullptr;
  float eps = 0;
  const float* inverse_frequencies = nullptr;  // [D / 2]
  const int32_t* positions = nullptr;          // [N]
  // [N] block * kKvBlockTokens + index in the block; -1 marks a padded row, which writes nothing.
  const int64_t* slots = nullptr;
  int64_t rows = 0, heads = 0, kv_heads = 0, head_dim = 0;  // N, H, Hkv, D <= 256
  float* queries = nullptr;                                 // [N, H, D], scaled by 1 / sqrt(D)
  uint16_t* queries_bf16 = nullptr;                         // the same, rounded; or null
  void* keys = nullptr;                                     // [blocks, Hkv, kKvBlockTokens, D]
  void* values = nullptr;                                   // as keys
  Element kv = Element::kFp32;
};
void RunRotateStore(const RotateStore& task, Stream stream);

// What RunRotateStore does to heads of queries (before scaling) or of keys, with the same bits. A
// backward pass uses it.
struct RotateHeads {
  const float* in = nullptr;    // [N, H, D], biases included
  const float* norm = nullptr;  // [D], or null
  float eps = 0;
  const float* inverse_frequencies = nullptr;  // [D / 2]
  const int32_t* positions = nullptr;          // [N]
  int64_t rows = 0, heads = 0, head_dim = 0;   // N, H, D <= 256
  float* out = nullptr;                        // [N, H, D]
};
void RunRotateHeads(const RotateHeads& task, Stream stream);

// out [N, I] = gate * sigmoid(gate) * up, where gate_up [N, 2 I] holds the gates, then the ups, and
// `bias` [2 I] or null is added to it.
void SwiGlu(const float* gate_up, const float* bias, int64_t rows, int64_t width, void* out,
            Element element, Stream stream);

// Copies the keys and values of the tokens at `slots` [T] out of their blocks, to [T, Hkv, D] each,
// in their stored dtype.
void GatherKv(const void* keys, const void* values, Element kv, const int64_t* slots,
              int64_t tokens, int64_t kv_heads, int64_t head_dim, void* out_keys, void* out_values,
              Stream stream);

// out [N, O] fp32 = x [N, I] times the transpose of weight [O, I], both of `element`, I % 8 == 0.
// Every output is one chain of fp32 fused multiply-adds that starts from 0 and runs over I in
// rising order: sum = fmaf(x[n, i], weight[o, i], sum). It uses no tensor cores. It serves the
// numerics modes whose bits must not depend on the batch.
struct Matmul {
  const void* x = nullptr;
  const void* weight = nullptr;
  Element element = Element::kFp32;
  int64_t rows = 0, inner = 0, outer = 0;  // N, I, O
  float* out = nullptr;
};
void RunMatmul(const Matmul& task, Stream stream);

// Contexts are cut into chunks of this many tokens, whatever the batch; the chunks' results are
// combined in order.
inline constexpr int64_t kAttentionChunk = 256;

// softmax(q k) v over the blocks of each row's sequence. The query heads that share a KV head read
// its keys and values together.
struct PagedAttention {
  const float* queries = nullptr;  // [N, H, D], scaled
  const void* keys = nullptr;      // [blocks, Hkv, kKvBlockTokens, D]
  const void* values = nullptr;
  Element kv = Element::kFp32;
  const int32_t* block_tables = nullptr;  // [S, max_blocks]
  const int32_t* sequences = nullptr;     // [N] index into block_tables
  const int32_t* contexts = nullptr;      // [N] tokens attended to; 0: padded row, output 0
  int64_t rows = 0, heads = 0, kv_heads = 0, head_dim = 0;  // D <= 256, D % 8 == 0
  int64_t max_blocks = 0;
  int64_t longest = 0;       // no context is longer
  float* scratch = nullptr;  // AttentionScratch floats
  void* out = nullptr;       // [N, H D]
  Element element = Element::kFp32;
};
constexpr int64_t AttentionScratch(int64_t rows, int64_t heads, int64_t head_dim, int64_t longest) {
  const int64_t chunks = (longest + kAttentionChunk - 1) / kAttentionChunk;
  return rows * heads * chunks * (head_dim + 2);
}
void RunPagedAttention(const PagedAttention& task, Stream stream);

// Computes the digest of common/weights/digest.h over memory of a CUDA device, with the same
// bits as on the host. Free of LibTorch and of CUDA headers. Thread-safe.

// Adds SumWords of the bytes to sums[0] and sums[1], modulo 2^64. The bytes may begin at any
// address. Enqueues the kernel on the stream and returns.
struct ByteSums {
  const void* bytes = nullptr;
  int64_t num_bytes = 0;
  uint64_t* sums = nullptr;  // [2] in device memory
};
void RunWordSums(const ByteSums& task, Stream stream);

}  // namespace tandem::cuda
