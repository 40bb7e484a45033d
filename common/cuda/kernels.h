// Kernels of a forward on a CUDA device: the engine's (arrow 2), and what the trainer shares with
// it. They compute what common/model/forward_kernels.h computes, in the same precision: the
// residual stream, norms, rotary, softmax and sums are fp32, and what the next linear layer
// multiplies is stored as its weights are.
//
// Raw device pointers, contiguous unless said; a call puts the kernel on the stream and returns. A
// row's result depends on that row alone, bit by bit: sums are in an order fixed by the row's own
// length. Sizes: the vocabulary is at most 2^20; rows and blocks are what int64_t indexes. Free of
// LibTorch and of CUDA headers. Thread-safe.
#ifndef TANDEM_COMMON_CUDA_KERNELS_H_
#define TANDEM_COMMON_CUDA_KERNELS_H_

#include <cstdint>

struct CUstream_st;

namespace tandem::cuda {

using Stream = CUstream_st*;  // cudaStream_t

enum class Element { kFp32, kBf16 };
constexpr int64_t ElementBytes(Element element) { return element == Element::kFp32 ? 4 : 2; }

// What the last calls of this process did wrong (a launch refused, a kernel that faulted), or null.
const char* KernelError();

// Whole blocks of KV, of all layers: block to[i] becomes a copy of block from[i], 16-byte words of
// a cache [layers, blocks, block_bytes]. No block is both copied from and copied to.
struct CopyBlocks {
  void* cache = nullptr;
  int64_t layers = 0, blocks = 0, block_bytes = 0;  // block_bytes % 16 == 0
  const int32_t* from = nullptr;                    // of the host, and so `to`
  const int32_t* to = nullptr;
  int64_t count = 0;
};
void RunCopyBlocks(const CopyBlocks& task, Stream stream);

// hidden [N, E] fp32 = row ids[i] of table [V, E].
void Embed(const void* table, Element element, const int32_t* ids, int64_t rows, int64_t width,
           float* hidden, Stream stream);

// hidden += delta + bias, then normed = hidden rstd weight with rstd = 1 / sqrt(mean(hidden^2) +
// eps).
struct AddNorm {
  float* hidden = nullptr;        // [*, E] the residual stream
  const float* delta = nullptr;   // [*, E], or null
  const float* bias = nullptr;    // [E], or null
  const float* weight = nullptr;  // [E]
  float eps = 0;
  const int64_t* chosen = nullptr;  // [N] rows of hidden, no two the same; null: 0 .. N - 1
  int64_t rows = 0, width = 0;      // N, E; E % 4 == 0
  void* normed = nullptr;           // [N, E]
  Element element = Element::kFp32;
  // bf16 too, what rounding to bf16 left of each value: normed + rest has 16 significand bits. Or
  // null.
  void* rest = nullptr;
};
void RunAddNorm(const AddNorm& task, Stream stream);

// Adds biases, normalises (Qwen3), rotates and scales queries, rotates keys, and writes keys and
// values into their blocks.
struct RotateStore {
  const float* qkv = nullptr;     // [N, (H + 2 Hkv) D]: queries, keys, values
  const float* bias = nullptr;    // [(H + 2 Hkv) D], or null
  const float* q_norm = nullptr;  // [D], or null
  const float* k_norm = nullptr;
  float eps = 0;
  const float* inverse_frequencies = nullptr;  // [D / 2]
  const int32_t* positions = nullptr;          // [N]
  // [N] block x kKvBlockTokens + place in it; -1: a padded row, which writes nothing.
  const int64_t* slots = nullptr;
  int64_t rows = 0, heads = 0, kv_heads = 0, head_dim = 0;  // N, H, Hkv, D <= 256
  float* queries = nullptr;                                 // [N, H, D], times 1 / sqrt(D)
  uint16_t* queries_bf16 = nullptr;                         // the same rounded, or null
  void* keys = nullptr;                                     // [blocks, Hkv, kKvBlockTokens, D]
  void* values = nullptr;                                   // the same
  Element kv = Element::kFp32;
};
void RunRotateStore(const RotateStore& task, Stream stream);

// What RunRotateStore does to heads of queries (before they are scaled) or keys, with its bits: for
// a backward pass that wants them as they are.
struct RotateHeads {
  const float* in = nullptr;    // [N, H, D], with biases
  const float* norm = nullptr;  // [D], or null
  float eps = 0;
  const float* inverse_frequencies = nullptr;  // [D / 2]
  const int32_t* positions = nullptr;          // [N]
  int64_t rows = 0, heads = 0, head_dim = 0;   // N, H, D <= 256
  float* out = nullptr;                        // [N, H, D]
};
void RunRotateHeads(const RotateHeads& task, Stream stream);

// out [N, I] = gate sigmoid(gate) up, of gate_up [N, 2 I] (gates, then ups) + bias [2 I] (or null).
void SwiGlu(const float* gate_up, const float* bias, int64_t rows, int64_t width, void* out,
            Element element, Stream stream);

// Keys and values of tokens at `slots` [T], out of their blocks: [T, Hkv, D] each, as they are
// stored.
void GatherKv(const void* keys, const void* values, Element kv, const int64_t* slots,
              int64_t tokens, int64_t kv_heads, int64_t head_dim, void* out_keys, void* out_values,
              Stream stream);

// out [N, O] fp32 = x [N, I] times weight [O, I] transposed, both of `element`, I % 8 == 0. An
// output is one chain of fp32 fused multiply-adds from 0 on, in rising order of I: fmaf(x[n, i],
// weight[o, i], sum). Plain cores, no tensor cores: for numerics that promise the same bits in any
// company.
struct Matmul {
  const void* x = nullptr;
  const void* weight = nullptr;
  Element element = Element::kFp32;
  int64_t rows = 0, inner = 0, outer = 0;  // N, I, O
  float* out = nullptr;
};
void RunMatmul(const Matmul& task, Stream stream);

// Contexts are cut into chunks of so many tokens, whatever the batch; their parts are added up in
// order.
inline constexpr int64_t kAttentionChunk = 256;

// softmax(q k) v over the blocks of each row's sequence. The query heads of one KV head go through
// each of its keys and values together.
struct PagedAttention {
  const float* queries = nullptr;  // [N, H, D], scaled
  const void* keys = nullptr;      // [blocks, Hkv, kKvBlockTokens, D]
  const void* values = nullptr;
  Element kv = Element::kFp32;
  const int32_t* block_tables = nullptr;  // [S, max_blocks]
  const int32_t* sequences = nullptr;     // [N] row of block_tables
  const int32_t* contexts = nullptr;      // [N] tokens attended to; 0: a padded row, which gives 0
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

}  // namespace tandem::cuda

#endif  // TANDEM_COMMON_CUDA_KERNELS_H_
