// Kernels that work on one row at a time: embedding, norm, rotary embedding with the KV write,
// SwiGLU, gathering KV for LibTorch's attention, and copies of KV blocks. One thread block or warp
// owns a row or head, and reduces it with BlockSum or WarpSum, so that its bits do not depend on
// the other rows.
#include <algorithm>

#include "common/cuda/device.h"
#include "common/model/forward_kernels.h"

namespace tandem::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / kWarp;

template <typename T>
__global__ void EmbedKernel(const T* table, const int32_t* ids, int64_t width, float* hidden) {
  const T* from = table + ids[blockIdx.x] * width;
  float* to = hidden + blockIdx.x * width;
  for (int64_t i = threadIdx.x; i < width; i += blockDim.x) to[i] = Widen(from[i]);
}

template <typename T>
__global__ void AddNormKernel(AddNorm task) {
  const int64_t width = task.width, out_row = blockIdx.x;
  const int64_t row = task.chosen == nullptr ? out_row : task.chosen[out_row];
  auto* hidden = reinterpret_cast<float4*>(task.hidden + row * width);
  const auto* delta =
      reinterpret_cast<const float4*>(task.delta == nullptr ? nullptr : task.delta + row * width);
  const auto* bias = reinterpret_cast<const float4*>(task.bias);
  float squares = 0;
  for (int64_t i = threadIdx.x; i < width / 4; i += blockDim.x) {
    float4 x = hidden[i];
    if (delta != nullptr) {
      float4 d = delta[i];
      if (bias != nullptr) {
        const float4 b = bias[i];
        d = {d.x + b.x, d.y + b.y, d.z + b.z, d.w + b.w};
      }
      x = {x.x + d.x, x.y + d.y, x.z + d.z, x.w + d.w};
      hidden[i] = x;
    }
    squares += x.x * x.x + x.y * x.y + x.z * x.z + x.w * x.w;
  }
  __shared__ float sums[kWarps];
  const float mean = BlockSum(squares, sums) / static_cast<float>(width);
  const float rstd = 1.0f / sqrtf(mean + task.eps);
  const auto* weight = reinterpret_cast<const float4*>(task.weight);
  T* out = static_cast<T*>(task.normed) + out_row * width;
  auto* rest = task.rest == nullptr ? nullptr : static_cast<uint16_t*>(task.rest) + out_row * width;
  for (int64_t i = threadIdx.x; i < width / 4; i += blockDim.x) {
    const float4 x = hidden[i], w = weight[i];
    const float normed[4] = {w.x * (x.x * rstd), w.y * (x.y * rstd), w.z * (x.z * rstd),
                             w.w * (x.w * rstd)};
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      Store(normed[j], out + 4 * i + j);
      if (rest != nullptr) rest[4 * i + j] = NearestBf16(normed[j] - Widen(NearestBf16(normed[j])));
    }
  }
}

// 1 / sqrt(mean(x^2) + eps) of a head, of which this lane holds `x`.
__device__ float HeadRstd(const float (&x)[8], int64_t head_dim, float eps) {
  float squares = 0;
#pragma unroll
  for (const float one : x) squares += one * one;
  return 1.0f / sqrtf(WarpSum(squares) / static_cast<float>(head_dim) + eps);
}

// A head, spread over one warp: lane l holds the rotary pairs (i, i + D / 2) for i = l, l + 32,
// ..., as x[2 k] and x[2 k + 1].
struct Head {
  float x[8];
};

__device__ Head LoadHead(const float* from, const float* bias, int64_t head_dim) {
  const int64_t half = head_dim / 2;
  Head head;
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    const int64_t i = threadIdx.x % kWarp + k * kWarp;
    const bool inside = i < half;
    head.x[2 * k] = inside ? from[i] + (bias == nullptr ? 0.0f : bias[i]) : 0.0f;
    head.x[2 * k + 1] = inside ? from[i + half] + (bias == nullptr ? 0.0f : bias[i + half]) : 0.0f;
  }
  return head;
}

template <typename T>
__device__ void StoreHead(const Head& head, int64_t head_dim, T* to) {
  const int64_t half = head_dim / 2;
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    const int64_t i = threadIdx.x % kWarp + k * kWarp;
    if (i >= half) continue;
    Store(head.x[2 * k], to + i);
    Store(head.x[2 * k + 1], to + i + half);
  }
}

__device__ void NormHead(Head& head, const float* weight, int64_t head_dim, float eps) {
  const int64_t half = head_dim / 2;
  const float rstd = HeadRstd(head.x, head_dim, eps);
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    const int64_t i = threadIdx.x % kWarp + k * kWarp;
    if (i >= half) continue;
    head.x[2 * k] = weight[i] * (head.x[2 * k] * rstd);
    head.x[2 * k + 1] = weight[i + half] * (head.x[2 * k + 1] * rstd);
  }
}

__device__ void RotateHead(Head& head, const float* cosines, const float* sines, int64_t head_dim,
                           float scale) {
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    const int64_t i = threadIdx.x % kWarp + k * kWarp;
    if (i >= head_dim / 2) continue;
    const float a = head.x[2 * k], b = head.x[2 * k + 1];
    head.x[2 * k] = (a * cosines[i] - b * sines[i]) * scale;
    head.x[2 * k + 1] = (b * cosines[i] + a * sines[i]) * scale;
  }
}

constexpr int kMaxHalf = 128;

// Fills the cosines and sines of a row's position, for all threads of the block.
__device__ void FillAngles(int32_t position, const float* inverse_frequencies, int64_t head_dim,
                           float* cosines, float* sines) {
  for (int64_t i = threadIdx.x; i < head_dim / 2; i += blockDim.x) {
    const float angle = static_cast<float>(position) * inverse_frequencies[i];
    cosines[i] = cosf(angle);
    sines[i] = sinf(angle);
  }
  __syncthreads();
}

template <typename Kv>
__global__ void RotateStoreKernel(RotateStore task) {
  __shared__ float cosines[kMaxHalf], sines[kMaxHalf];
  const int64_t row = blockIdx.x, d = task.head_dim, slot = task.slots[row];
  FillAngles(task.positions[row], task.inverse_frequencies, d, cosines, sines);
  const int64_t all_heads = task.heads + 2 * task.kv_heads;
  const float scale = 1.0f / sqrtf(static_cast<float>(d));
  for (int64_t h = threadIdx.x / kWarp; h < all_heads; h += kWarps) {
    Head head = LoadHead(task.qkv + (row * all_heads + h) * d,
                         task.bias == nullptr ? nullptr : task.bias + h * d, d);
    if (h < task.heads) {
      if (task.q_norm != nullptr) NormHead(head, task.q_norm, d, task.eps);
      RotateHead(head, cosines, sines, d, scale);
      const int64_t at = (row * task.heads + h) * d;
      StoreHead(head, d, task.queries + at);
      if (task.queries_bf16 != nullptr) StoreHead(head, d, task.queries_bf16 + at);
      continue;
    }
    const bool is_key = h < task.heads + task.kv_heads;
    if (is_key) {
      if (task.k_norm != nullptr) NormHead(head, task.k_norm, d, task.eps);
      RotateHead(head, cosines, sines, d, 1.0f);
    }
    if (slot < 0) continue;
    const int64_t kv_head = (h - task.heads) % task.kv_heads;
    const int64_t block = slot / kKvBlockTokens, place = slot % kKvBlockTokens;
    Kv* cache = static_cast<Kv*>(is_key ? task.keys : task.values);
    StoreHead(head, d, cache + ((block * task.kv_heads + kv_head) * kKvBlockTokens + place) * d);
  }
}

__global__ void RotateHeadsKernel(RotateHeads task) {
  __shared__ float cosines[kMaxHalf], sines[kMaxHalf];
  const int64_t row = blockIdx.x, d = task.head_dim;
  FillAngles(task.positions[row], task.inverse_frequencies, d, cosines, sines);
  for (int64_t h = threadIdx.x / kWarp; h < task.heads; h += kWarps) {
    const int64_t at = (row * task.heads + h) * d;
    Head head = LoadHead(task.in + at, nullptr, d);
    if (task.norm != nullptr) NormHead(head, task.norm, d, task.eps);
    RotateHead(head, cosines, sines, d, 1.0f);
    StoreHead(head, d, task.out + at);
  }
}

template <typename T>
__global__ void SwiGluKernel(const float* gate_up, const float* bias, int64_t width, T* out) {
  const float* gates = gate_up + blockIdx.x * 2 * width;
  T* to = out + blockIdx.x * width;
  const int64_t first = static_cast<int64_t>(blockIdx.y) * blockDim.x + threadIdx.x;
  for (int64_t i = first; i < width; i += static_cast<int64_t>(gridDim.y) * blockDim.x) {
    const float gate = gates[i] + (bias == nullptr ? 0.0f : bias[i]);
    const float up = gates[width + i] + (bias == nullptr ? 0.0f : bias[width + i]);
    Store(gate / (1.0f + expf(-gate)) * up, to + i);
  }
}

template <typename Kv>
__global__ void GatherKvKernel(const Kv* keys, const Kv* values, const int64_t* slots,
                               int64_t kv_heads, int64_t d, Kv* out_keys, Kv* out_values) {
  const int64_t token = blockIdx.x, slot = slots[token];
  const int64_t block = slot / kKvBlockTokens, place = slot % kKvBlockTokens;
  for (int64_t i = threadIdx.x; i < kv_heads * d; i += blockDim.x) {
    const int64_t head = i / d;
    const int64_t from = ((block * kv_heads + head) * kKvBlockTokens + place) * d + i % d;
    out_keys[token * kv_heads * d + i] = keys[from];
    out_values[token * kv_heads * d + i] = values[from];
  }
}

template <typename Kv>
void Gather(const void* keys, const void* values, const int64_t* slots, int64_t tokens,
            int64_t kv_heads, int64_t head_dim, void* out_keys, void* out_values, Stream stream) {
  TANDEM_LAUNCH(GatherKvKernel<Kv>, GridOf(tokens), kThreads, stream, static_cast<const Kv*>(keys),
                static_cast<const Kv*>(values), slots, kv_heads, head_dim,
                static_cast<Kv*>(out_keys), static_cast<Kv*>(out_values));
}

// Pairs of blocks are passed as kernel arguments, so that they need no upload.
constexpr int64_t kBlockPairs = 256;
struct BlockPairs {
  int32_t from[kBlockPairs], to[kBlockPairs];
};

// Grid: [parts of a KV block, layers, pairs].
__global__ void CopyBlocksKernel(uint4* cache, int64_t blocks, int64_t words, BlockPairs pairs) {
  const int64_t layer = blockIdx.y * blocks;
  const uint4* const from = cache + (layer + pairs.from[blockIdx.z]) * words;
  uint4* const to = cache + (layer + pairs.to[blockIdx.z]) * words;
  for (int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x; i < words;
       i += int64_t{gridDim.x} * kThreads) {
    to[i] = from[i];
  }
}

}  // namespace

const char* KernelError() {
  const cudaError_t error = cudaGetLastError();
  return error == cudaSuccess ? nullptr : cudaGetErrorString(error);
}

void Embed(const void* table, Element element, const int32_t* ids, int64_t rows, int64_t width,
           float* hidden, Stream stream) {
  if (rows == 0) return;
  if (element == Element::kBf16) {
    TANDEM_LAUNCH(EmbedKernel<uint16_t>, GridOf(rows), kThreads, stream,
                  static_cast<const uint16_t*>(table), ids, width, hidden);
  } else {
    TANDEM_LAUNCH(EmbedKernel<float>, GridOf(rows), kThreads, stream,
                  static_cast<const float*>(table), ids, width, hidden);
  }
}

void RunAddNorm(const AddNorm& task, Stream stream) {
  if (task.rows == 0) return;
  if (task.element == Element::kBf16) {
    TANDEM_LAUNCH(AddNormKernel<uint16_t>, GridOf(task.rows), kThreads, stream, task);
  } else {
    TANDEM_LAUNCH(AddNormKernel<float>, GridOf(task.rows), kThreads, stream, task);
  }
}

void RunRotateStore(const RotateStore& task, Stream stream) {
  if (task.rows == 0) return;
  if (task.kv == Element::kBf16) {
    TANDEM_LAUNCH(RotateStoreKernel<uint16_t>, GridOf(task.rows), kThreads, stream, task);
  } else {
    TANDEM_LAUNCH(RotateStoreKernel<float>, GridOf(task.rows), kThreads, stream, task);
  }
}

void RunRotateHeads(const RotateHeads& task, Stream stream) {
  if (task.rows == 0) return;
  TANDEM_LAUNCH(RotateHeadsKernel, GridOf(task.rows), kThreads, stream, task);
}

void SwiGlu(const float* gate_up, const float* bias, int64_t rows, int64_t width, void* out,
            Element element, Stream stream) {
  if (rows == 0) return;
  constexpr int64_t kColumnsEach = 4 * kThreads;
  const dim3 grid(GridOf(rows), GridOf((width + kColumnsEach - 1) / kColumnsEach), 1);
  if (element == Element::kBf16) {
    TANDEM_LAUNCH(SwiGluKernel<uint16_t>, grid, kThreads, stream, gate_up, bias, width,
                  static_cast<uint16_t*>(out));
  } else {
    TANDEM_LAUNCH(SwiGluKernel<float>, grid, kThreads, stream, gate_up, bias, width,
                  static_cast<float*>(out));
  }
}

void GatherKv(const void* keys, const void* values, Element kv, const int64_t* slots,
              int64_t tokens, int64_t kv_heads, int64_t head_dim, void* out_keys, void* out_values,
              Stream stream) {
  if (tokens == 0) return;
  if (kv == Element::kBf16) {
    Gather<uint16_t>(keys, values, slots, tokens, kv_heads, head_dim, out_keys, out_values, stream);
  } else {
    Gather<float>(keys, values, slots, tokens, kv_heads, head_dim, out_keys, out_values, stream);
  }
}

void RunCopyBlocks(const CopyBlocks& task, Stream stream) {
  constexpr int64_t kPieceBytes = int64_t{16} * kThreads * 4;
  const auto pieces = (task.block_bytes + kPieceBytes - 1) / kPieceBytes;
  for (int64_t first = 0; first < task.count; first += kBlockPairs) {
    BlockPairs pairs;
    const int64_t count = std::min(kBlockPairs, task.count - first);
    std::copy_n(task.from + first, count, pairs.from);
    std::copy_n(task.to + first, count, pairs.to);
    const dim3 grid(GridOf(pieces), GridOf(task.layers), GridOf(count));
    TANDEM_LAUNCH(CopyBlocksKernel, grid, kThreads, stream, static_cast<uint4*>(task.cache),
                  task.blocks, task.block_bytes / 16, pairs);
  }
}

}  // namespace tandem::cuda
