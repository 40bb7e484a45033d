// Attention over KV blocks ("paged attention", Kwon et al., SOSP 2023), split along the context as
// Flash-Decoding does (Dao et al. 2023): chunks of a row are computed in parallel and combined
// afterwards. Unlike there, the chunk length is a constant and not a function of the batch, and
// chunks are combined in order, so that a row's bits depend on its own context alone.
//
// AttendChunk: one thread block computes one chunk of one row for the query heads of one KV head:
// the scores, their softmax relative to the chunk's own maximum, and the weighted sum of the
// values. kLanes adjacent threads share a token and hold eight elements of it each; all heads use
// the same loads. AddChunks rescales the partial results to the row's maximum and adds them up (the
// online softmax of Milakov and Gimelshein, arXiv 1805.02867).
//
// Rows of one group share the blocks of their prompt. They are adjacent in the grid, so that later
// rows find the blocks in the L2 cache; nothing in this file loads them only once for all rows.
#include <algorithm>

#include "common/cuda/device.h"
#include "common/model/forward_kernels.h"

namespace tandem::cuda {
namespace {

constexpr int kThreads = 128;
constexpr int kWarps = kThreads / kWarp;
constexpr int kChunk = static_cast<int>(kAttentionChunk);
constexpr int kBlockTokens = static_cast<int>(kKvBlockTokens);

// The partial result of one chunk for one row and head. Scratch is [N, H, chunks, D + 2].
struct Part {
  float* largest;  // maximum of the scores
  float* sum;      // sum of e^(score - largest)
  float* values;   // [D] sum of values weighted by e^(score - largest)
};

__device__ Part PartOf(const PagedAttention& task, int64_t row, int64_t head, int64_t chunk,
                       int64_t num_chunks) {
  float* at = task.scratch + ((row * task.heads + head) * num_chunks + chunk) * (task.head_dim + 2);
  return {at, at + 1, at + 2};
}

template <typename Kv, int kLanes, int kHeads>
struct Chunk {
  static constexpr int kTokens = kThreads / kLanes;       // tokens computed at the same time
  static constexpr int kAhead = sizeof(Kv) == 2 ? 4 : 2;  // loads in flight per thread
  struct Shared {
    float scores[kHeads][kChunk];
    float sums[kWarps][kHeads][kLanes * 8];
  };

  const PagedAttention& task;
  const int64_t kv_head;
  const int32_t* blocks;  // block table, from the chunk's first block on
  const int count;        // tokens in the chunk
  Shared& shared;

  __device__ int lane() const { return static_cast<int>(threadIdx.x) % kLanes; }
  __device__ int token_lane() const { return static_cast<int>(threadIdx.x) / kLanes; }
  __device__ bool inside() const { return lane() * 8 < task.head_dim; }

  __device__ auto Load(const void* cache, int token) const {
    if (token >= count || !inside()) return ZeroRaw(Kv{});
    const int64_t row =
        (static_cast<int64_t>(blocks[token / kBlockTokens]) * task.kv_heads + kv_head) *
            kBlockTokens +
        token % kBlockTokens;
    return LoadRaw(static_cast<const Kv*>(cache) + row * task.head_dim + lane() * 8);
  }

  // shared.scores[h][t] = dot(query h, key t). All threads run the same number of iterations,
  // because lanes exchange sums in each of them.
  __device__ void Scores(const float* queries, int heads) const {
    Eight query[kHeads];
#pragma unroll
    for (int h = 0; h < kHeads; ++h) {
      query[h] =
          h < heads && inside() ? LoadEight(queries + h * task.head_dim + lane() * 8) : Eight{};
    }
    for (int begin = 0; begin < count; begin += kAhead * kTokens) {
      decltype(ZeroRaw(Kv{})) raw[kAhead];
#pragma unroll
      for (int a = 0; a < kAhead; ++a) {
        raw[a] = Load(task.keys, begin + a * kTokens + token_lane());
      }
#pragma unroll
      for (int a = 0; a < kAhead; ++a) {
        const Eight key = Widen(raw[a]);
        const int token = begin + a * kTokens + token_lane();
#pragma unroll
        for (int h = 0; h < kHeads; ++h) {
          float dot = 0;
#pragma unroll
          for (int i = 0; i < 8; ++i) dot = fmaf(query[h].x[i], key.x[i], dot);
#pragma unroll
          for (int step = kLanes / 2; step > 0; step /= 2) {
            dot += __shfl_xor_sync(kAllLanes, dot, step);
          }
          if (lane() == 0 && token < count) shared.scores[h][token] = dot;
        }
      }
    }
  }

  // Turns scores into e^(score - largest); one warp per head.
  __device__ void Softmax(int64_t row, int64_t first_head, int heads, int64_t chunk,
                          int64_t num_chunks) const {
    const int warp_lane = static_cast<int>(threadIdx.x) % kWarp;
    for (int h = static_cast<int>(threadIdx.x) / kWarp; h < heads; h += kWarps) {
      float* scores = shared.scores[h];
      float largest = scores[0];
      for (int t = warp_lane; t < count; t += kWarp) largest = fmaxf(largest, scores[t]);
      largest = WarpMax(largest);
      float sum = 0;
      __syncwarp();
      for (int t = warp_lane; t < count; t += kWarp) {
        const float e = expf(scores[t] - largest);
        scores[t] = e;
        sum += e;
      }
      sum = WarpSum(sum);
      if (warp_lane == 0) {
        const Part part = PartOf(task, row, first_head + h, chunk, num_chunks);
        *part.largest = largest;
        *part.sum = sum;
      }
    }
  }

  // The weighted sum of the values: first over each thread's own tokens, then over the lanes of a
  // warp, then over the warps, always in the same order.
  __device__ void Values(int64_t row, int64_t first_head, int heads, int64_t chunk,
                         int64_t num_chunks) const {
    Eight sum[kHeads] = {};
    for (int begin = 0; begin < count; begin += kAhead * kTokens) {
      decltype(ZeroRaw(Kv{})) raw[kAhead];
#pragma unroll
      for (int a = 0; a < kAhead; ++a) {
        raw[a] = Load(task.values, begin + a * kTokens + token_lane());
      }
#pragma unroll
      for (int a = 0; a < kAhead; ++a) {
        const int token = begin + a * kTokens + token_lane();
        const Eight value = Widen(raw[a]);
#pragma unroll
        for (int h = 0; h < kHeads; ++h) {
          const float weight = token < count && h < heads ? shared.scores[h][token] : 0.0f;
#pragma unroll
          for (int i = 0; i < 8; ++i) sum[h].x[i] = fmaf(weight, value.x[i], sum[h].x[i]);
        }
      }
    }
#pragma unroll
    for (int h = 0; h < kHeads; ++h) {
#pragma unroll
      for (int i = 0; i < 8; ++i) {
#pragma unroll
        for (int step = kLanes; step < kWarp; step *= 2) {
          sum[h].x[i] += __shfl_xor_sync(kAllLanes, sum[h].x[i], step);
        }
        if (threadIdx.x % kWarp < kLanes) {
          shared.sums[threadIdx.x / kWarp][h][lane() * 8 + i] = sum[h].x[i];
        }
      }
    }
    __syncthreads();
    const int d = static_cast<int>(task.head_dim);
    for (int i = static_cast<int>(threadIdx.x); i < heads * d; i += kThreads) {
      float total = 0;
      for (int w = 0; w < kWarps; ++w) total += shared.sums[w][i / d][i % d];
      PartOf(task, row, first_head + i / d, chunk, num_chunks).values[i % d] = total;
    }
  }
};

// Grid: [rows, KV heads x tiles of query heads, chunks].
template <typename Kv, int kLanes, int kHeads>
__global__ void __launch_bounds__(kThreads) AttendChunk(PagedAttention task) {
  using ChunkOf = Chunk<Kv, kLanes, kHeads>;
  __shared__ typename ChunkOf::Shared shared;
  const int64_t row = blockIdx.x, chunk = blockIdx.z, num_chunks = gridDim.z;
  const int64_t context = task.contexts[row], begin = chunk * kChunk;
  if (begin >= context) return;
  const int64_t group = task.heads / task.kv_heads;
  const int64_t tiles = (group + kHeads - 1) / kHeads;
  const int64_t kv_head = blockIdx.y / tiles, first = blockIdx.y % tiles * kHeads;
  const int64_t head = kv_head * group + first;
  const int heads = static_cast<int>(min(static_cast<int64_t>(kHeads), group - first));
  const ChunkOf part = {
      task, kv_head,
      task.block_tables + task.sequences[row] * task.max_blocks + begin / kBlockTokens,
      static_cast<int>(min(static_cast<int64_t>(kChunk), context - begin)), shared};
  part.Scores(task.queries + (row * task.heads + head) * task.head_dim, heads);
  __syncthreads();
  part.Softmax(row, head, heads, chunk, num_chunks);
  __syncthreads();
  part.Values(row, head, heads, chunk, num_chunks);
}

// Grid: [rows, heads]. Threads: elements of the head.
template <typename T>
__global__ void AddChunks(PagedAttention task, int64_t num_chunks) {
  const int64_t row = blockIdx.x, head = blockIdx.y, d = task.head_dim;
  const int64_t used = (task.contexts[row] + kChunk - 1) / kChunk;
  T* out = static_cast<T*>(task.out) + (row * task.heads + head) * d;
  float largest = used > 0 ? *PartOf(task, row, head, 0, num_chunks).largest : 0.0f;
  for (int64_t c = 1; c < used; ++c) {
    largest = fmaxf(largest, *PartOf(task, row, head, c, num_chunks).largest);
  }
  float sum = 0;
  for (int64_t c = 0; c < used; ++c) {
    const Part part = PartOf(task, row, head, c, num_chunks);
    sum += *part.sum * expf(*part.largest - largest);
  }
  for (int64_t i = threadIdx.x; i < d; i += blockDim.x) {
    float value = 0;
    for (int64_t c = 0; c < used; ++c) {
      const Part part = PartOf(task, row, head, c, num_chunks);
      value += part.values[i] * expf(*part.largest - largest);
    }
    Store(used > 0 ? value / sum : 0.0f, out + i);
  }
}

int64_t NumChunks(int64_t longest) {
  return std::max<int64_t>(1, (longest + kAttentionChunk - 1) / kAttentionChunk);
}

template <typename Kv, int kLanes, int kHeads>
void Attend(const PagedAttention& task, Stream stream) {
  const int64_t group = task.heads / task.kv_heads;
  const int64_t tiles = (group + kHeads - 1) / kHeads;
  const dim3 grid(GridOf(task.rows), GridOf(task.kv_heads * tiles),
                  GridOf(NumChunks(task.longest)));
  auto* const kernel = &AttendChunk<Kv, kLanes, kHeads>;
  TANDEM_LAUNCH(kernel, grid, kThreads, stream, task);
}

template <typename Kv, int kLanes>
void AttendHeads(const PagedAttention& task, Stream stream) {
  const int64_t group = task.heads / task.kv_heads;
  if (group == 1) return Attend<Kv, kLanes, 1>(task, stream);
  if (group == 2) return Attend<Kv, kLanes, 2>(task, stream);
  if (group <= 4) return Attend<Kv, kLanes, 4>(task, stream);
  Attend<Kv, kLanes, 8>(task, stream);
}

template <typename Kv>
void AttendLanes(const PagedAttention& task, Stream stream) {
  if (task.head_dim <= 64) return AttendHeads<Kv, 8>(task, stream);
  if (task.head_dim <= 128) return AttendHeads<Kv, 16>(task, stream);
  AttendHeads<Kv, 32>(task, stream);
}

}  // namespace

void RunPagedAttention(const PagedAttention& task, Stream stream) {
  if (task.rows == 0) return;
  if (task.kv == Element::kBf16) {
    AttendLanes<uint16_t>(task, stream);
  } else {
    AttendLanes<float>(task, stream);
  }
  const dim3 grid(GridOf(task.rows), GridOf(task.heads), 1);
  const int64_t num_chunks = NumChunks(task.longest);
  if (task.element == Element::kBf16) {
    TANDEM_LAUNCH(AddChunks<uint16_t>, grid, kThreads, stream, task, num_chunks);
  } else {
    TANDEM_LAUNCH(AddChunks<float>, grid, kThreads, stream, task, num_chunks);
  }
}

}  // namespace tandem::cuda
