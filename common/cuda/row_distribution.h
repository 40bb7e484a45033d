// The softmax of a row of logits, with sums whose order is fixed by the row's length alone. The
// engine samples from it (draw_kernel.cu, stage 2) and the trainer scores with it
// (exact_logprob_kernel.cu, stage 5), so that equal logits give equal bits on both sides. Only for
// .cu files.
//
// A row is cut into segments of consecutive ids, in the same way for every row of a vocabulary. One
// warp sums a whole segment, and one warp adds up the segments. The result therefore does not
// depend on how many thread blocks share a row.
//
// Every kernel compiles this code separately, and the compiler might fuse a product into a sum in
// one kernel and not in another. The build forbids that (cmake/cuda.cmake); sums that must agree
// also use intrinsics that are never fused (__fmul_rn, __dadd_rn and so on).
#pragma once

#include "common/cuda/device.h"

namespace tandem::cuda {

inline constexpr int kRowThreads = 512;  // threads per block
inline constexpr int kRowWarps = kRowThreads / kWarp;
inline constexpr int kMaxRowSegments = 512;
inline constexpr float kRowInfinity = __builtin_huge_valf();

// Ids per segment: a multiple of the warp size, large enough that kMaxRowSegments segments cover
// the row.
__host__ __device__ inline int SegmentSize(int64_t vocabulary) {
  constexpr int64_t kLeast = 1024;
  const int64_t each = kLeast * kMaxRowSegments;
  return static_cast<int>(kLeast * ((vocabulary + each - 1) / each));
}

__host__ __device__ inline int NumSegments(int64_t vocabulary) {
  const int64_t segment = SegmentSize(vocabulary);
  return static_cast<int>((vocabulary + segment - 1) / segment);
}

// Sums of e^y, e^y y and e^y y^2. No default initialisers, because shared memory cannot have any.
struct RowSums {
  double mass, first, second;
};

struct RowShared {
  float largest[kRowWarps], allowed_largest[kRowWarps];
  int32_t id[kRowWarps];
  int32_t broken[kRowWarps];
};

struct RowLargest {
  float all, allowed;  // largest logit of all ids, and of allowed ids; -inf if none
  int32_t id;          // id of allowed, the lowest on ties; the row's size if none
  bool broken;         // a logit is NaN or +inf, or all are -inf
};

// Calls visit(logit, id) for the ids [begin, end) of a row that belong to thread `of` of `threads`;
// begin is a multiple of 4. A thread gets runs of four consecutive ids in rising order, with one
// load per run where the row's address allows it.
template <typename Visit>
__device__ inline void VisitLogits(const float* logits, int begin, int end, int of, int threads,
                                   const Visit& visit) {
  const bool wide = (reinterpret_cast<uintptr_t>(logits) & 15u) == 0;
#pragma unroll 2
  for (int first = begin + 4 * of; first < end; first += 4 * threads) {
    if (wide && first + 4 <= end) {
      const float4 four = *reinterpret_cast<const float4*>(logits + first);
      visit(four.x, first);
      visit(four.y, first + 1);
      visit(four.z, first + 2);
      visit(four.w, first + 3);
      continue;
    }
    for (int id = first; id < min(end, first + 4); ++id) visit(logits[id], id);
  }
}

// Merges the results of two disjoint parts of a row. Until SettleLargest, `broken` only covers NaN.
__device__ inline void MergeLargest(const RowLargest& other, RowLargest& found) {
  found.all = fmaxf(found.all, other.all);
  found.broken = found.broken || other.broken;
  if (other.allowed > found.allowed || (other.allowed == found.allowed && other.id < found.id)) {
    found.allowed = other.allowed;
    found.id = other.id;
  }
}
__device__ inline void SettleLargest(RowLargest& found) {
  found.broken = found.broken || !isfinite(found.all);
}

// The result for the ids [begin, end) of a row of `size`, returned at all threads of the block;
// call SettleLargest when all parts are merged. `allowed(id)` is called with rising ids at each
// thread, and not for every id.
template <typename Allowed>
__device__ inline RowLargest LargestBetween(const float* logits, int size, int begin, int end,
                                            const Allowed& allowed, RowShared& shared) {
  RowLargest own = {-kRowInfinity, -kRowInfinity, size, false};
  int broken = 0;
  VisitLogits(logits, begin, end, static_cast<int>(threadIdx.x), kRowThreads,
              [&](float logit, int id) {
                broken |= isnan(logit);
                own.all = fmaxf(own.all, logit);
                // Ids rise, so the first of equal logits is kept.
                if (logit > own.allowed && allowed(id)) {
                  own.allowed = logit;
                  own.id = id;
                }
              });
  for (int step = kWarp / 2; step > 0; step /= 2) {
    broken |= __shfl_xor_sync(kAllLanes, broken, step);
    const RowLargest other = {__shfl_xor_sync(kAllLanes, own.all, step),
                              __shfl_xor_sync(kAllLanes, own.allowed, step),
                              __shfl_xor_sync(kAllLanes, own.id, step), false};
    MergeLargest(other, own);
  }
  if (threadIdx.x % kWarp == 0) {
    const unsigned warp = threadIdx.x / kWarp;
    shared.largest[warp] = own.all;
    shared.allowed_largest[warp] = own.allowed;
    shared.id[warp] = own.id;
    shared.broken[warp] = broken;
  }
  __syncthreads();
  RowLargest found = {-kRowInfinity, -kRowInfinity, size, false};
  for (int w = 0; w < kRowWarps; ++w) {
    MergeLargest(
        {shared.largest[w], shared.allowed_largest[w], shared.id[w], shared.broken[w] != 0}, found);
  }
  return found;
}

// With y = (logit - largest) * inverse_temperature, the terms of the sums and the log-prob of a
// logit.
struct RowScale {
  float largest, inverse_temperature;

  __device__ double Y(float logit) const {
    return __dmul_rn(static_cast<double>(logit - largest),
                     static_cast<double>(inverse_temperature));
  }

  // In fp32, for sums over the whole row. The largest term is 1, so terms below e^-87 do not change
  // the sum.
  __device__ RowSums Term(float logit) const {
    const float y = __fmul_rn(logit - largest, inverse_temperature);
    if (!(y >= -87.0f)) return {};
    const float e = expf(y), first = __fmul_rn(e, y);
    return {e, first, __fmul_rn(first, y)};
  }

  // In fp64, for sums over the ids that sampling filters left.
  __device__ RowSums WideTerm(float logit) const {
    if (!(logit > -kRowInfinity)) return {};
    const double y = Y(logit), e = exp(y), first = __dmul_rn(e, y);
    return {e, first, __dmul_rn(first, y)};
  }

  // log p, given log_mass = log(sums.mass).
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

// The sums of segment `s`, returned at all lanes of the calling warp, which must be complete: first
// over each lane's own ids, then over the lanes. `term_of(logit, id)` is called with rising ids at
// each lane.
template <typename TermOf>
__device__ inline RowSums SumSegment(const float* logits, int size, int s, const TermOf& term_of) {
  const int segment = SegmentSize(size);
  RowSums sums = {};
  VisitLogits(logits, s * segment, min(size, (s + 1) * segment),
              static_cast<int>(threadIdx.x) % kWarp, kWarp,
              [&](float logit, int id) { AddTerm(term_of(logit, id), sums); });
  return {WarpSum(sums.mass), WarpSum(sums.first), WarpSum(sums.second)};
}

// The sums of a row from those of its segments, `of(s)`, returned at all lanes of the calling warp.
template <typename OfSegment>
__device__ inline RowSums SumSegments(int size, const OfSegment& of) {
  const int num = NumSegments(size);
  RowSums sums = {};
  for (int s = static_cast<int>(threadIdx.x) % kWarp; s < num; s += kWarp) AddTerm(of(s), sums);
  return {WarpSum(sums.mass), WarpSum(sums.first), WarpSum(sums.second)};
}

}  // namespace tandem::cuda
