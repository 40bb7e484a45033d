// The softmax of a row of logits, summed by a block of threads in an order that the row's length
// fixes: what the engine draws from and records (draw_kernel.cu, arrow 2) and what the trainer
// scores again (exact_logprob_kernel.cu, arrow 5). Equal logits have equal bits in both. For .cu
// files alone.
//
// Each kernel compiles this code anew. A product that goes into a sum could be fused with it in one
// of them and not in the other, so both are written as functions that are never fused (__fmul_rn
// and its like).
#ifndef TANDEM_COMMON_CUDA_ROW_DISTRIBUTION_H_
#define TANDEM_COMMON_CUDA_ROW_DISTRIBUTION_H_

#include "common/cuda/device.h"

namespace tandem::cuda {

inline constexpr int kRowThreads = 512;  // of a block
inline constexpr int kRowWarps = kRowThreads / kWarp;
inline constexpr int kMaxRowSegments = 512;
inline constexpr float kRowInfinity = __builtin_huge_valf();

// Ids of a segment: a multiple of the warp, such that kMaxRowSegments of them are enough.
__host__ __device__ inline int SegmentSize(int64_t vocabulary) {
  constexpr int64_t kLeast = 1024;
  const int64_t each = kLeast * kMaxRowSegments;
  return static_cast<int>(kLeast * ((vocabulary + each - 1) / each));
}

// Of e^y, e^y y, e^y y^2. Without initialisers: shared memory has none.
struct RowSums {
  double mass, first, second;
};

struct RowShared {
  RowSums sums[kRowWarps];
  float largest[kRowWarps], allowed_largest[kRowWarps];
  int32_t id[kRowWarps];
  int32_t broken[kRowWarps];
};

struct RowLargest {
  float of_all, of_allowed;  // -inf where there is none
  int32_t id;                // of_allowed's, the lowest on ties; the row's size where there is none
  bool broken;               // a logit is NaN or +inf, or all are -inf
};

// At all threads. `allowed(id)` is asked at a thread for rising ids, and not for all of them.
template <typename Allowed>
__device__ inline RowLargest FindLargest(const float* logits, int size, const Allowed& allowed,
                                         RowShared& shared) {
  float raw = -kRowInfinity, largest = -kRowInfinity;
  int id = size;
  int broken = 0;
  for (int i = static_cast<int>(threadIdx.x); i < size; i += kRowThreads) {
    const float logit = logits[i];
    broken |= isnan(logit);
    raw = fmaxf(raw, logit);
    if (logit > largest && allowed(i)) {  // ids rise, so the first of equals stays
      largest = logit;
      id = i;
    }
  }
  for (int step = kWarp / 2; step > 0; step /= 2) {
    raw = fmaxf(raw, __shfl_xor_sync(kAllLanes, raw, step));
    broken |= __shfl_xor_sync(kAllLanes, broken, step);
    const float other = __shfl_xor_sync(kAllLanes, largest, step);
    const int other_id = __shfl_xor_sync(kAllLanes, id, step);
    if (other > largest || (other == largest && other_id < id)) {
      largest = other;
      id = other_id;
    }
  }
  if (threadIdx.x % kWarp == 0) {
    const unsigned warp = threadIdx.x / kWarp;
    shared.largest[warp] = raw;
    shared.allowed_largest[warp] = largest;
    shared.id[warp] = id;
    shared.broken[warp] = broken;
  }
  __syncthreads();
  RowLargest found = {-kRowInfinity, -kRowInfinity, size, false};
  for (int w = 0; w < kRowWarps; ++w) {
    found.of_all = fmaxf(found.of_all, shared.largest[w]);
    found.broken = found.broken || shared.broken[w] != 0;
    const float other = shared.allowed_largest[w];
    if (other > found.of_allowed || (other == found.of_allowed && shared.id[w] < found.id)) {
      found.of_allowed = other;
      found.id = shared.id[w];
    }
  }
  found.broken = found.broken || !isfinite(found.of_all);
  return found;
}

// y = (logit - largest) inverse_temperature of a row's logits, and their terms of the sums.
struct RowScale {
  float largest, inverse_temperature;

  __device__ double Y(float logit) const {
    return __dmul_rn(static_cast<double>(logit - largest),
                     static_cast<double>(inverse_temperature));
  }

  // In fp32: over all that may be drawn. Below e^-87 a term is nothing next to the largest, which
  // is 1.
  __device__ RowSums Term(float logit) const {
    const float y = __fmul_rn(logit - largest, inverse_temperature);
    if (!(y >= -87.0f)) return {};
    const float e = expf(y), first = __fmul_rn(e, y);
    return {e, first, __fmul_rn(first, y)};
  }

  // In fp64: over what filters left.
  __device__ RowSums WideTerm(float logit) const {
    if (!(logit > -kRowInfinity)) return {};
    const double y = Y(logit), e = exp(y), first = __dmul_rn(e, y);
    return {e, first, __dmul_rn(first, y)};
  }

  // log p, with log_mass = log(sums.mass).
  __device__ float LogProb(float logit, double log_mass) const {
    return static_cast<float>(__dadd_rn(Y(logit), -log_mass));
  }
};

__device__ inline float EntropyOf(const RowSums& sums, double log_mass) {
  return static_cast<float>(fmax(0.0, __dadd_rn(log_mass, -(sums.first / sums.mass))));
}

__device__ inline void AddTerm(const RowSums& term, RowSums& sums) {
  sums.mass = __dadd_rn(sums.mass, term.mass);
  sums.first = __dadd_rn(sums.first, term.first);
  sums.second = __dadd_rn(sums.second, term.second);
}

// Of all ids, at all threads; those of each segment's masses into `segment_mass`, or null. A warp
// takes whole segments; `term_of(logit, id)` is asked at a thread for rising ids, all of them.
template <typename TermOf>
__device__ inline RowSums SumRow(const float* logits, int size, const TermOf& term_of,
                                 double* segment_mass, RowShared& shared) {
  const int segment = SegmentSize(size), lane = static_cast<int>(threadIdx.x) % kWarp;
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  RowSums all = {};
  for (int s = warp; s * segment < size; s += kRowWarps) {
    const int end = min(size, (s + 1) * segment);
    RowSums sums = {};
    for (int id = s * segment + lane; id < end; id += kWarp) AddTerm(term_of(logits[id], id), sums);
    const RowSums of_segment = {WarpSum(sums.mass), WarpSum(sums.first), WarpSum(sums.second)};
    AddTerm(of_segment, all);
    if (lane == 0 && segment_mass != nullptr) segment_mass[s] = of_segment.mass;
  }
  if (lane == 0) shared.sums[warp] = all;
  __syncthreads();
  all = {};
  for (int w = 0; w < kRowWarps; ++w) AddTerm(shared.sums[w], all);
  __syncthreads();
  return all;
}

}  // namespace tandem::cuda

#endif  // TANDEM_COMMON_CUDA_ROW_DISTRIBUTION_H_
