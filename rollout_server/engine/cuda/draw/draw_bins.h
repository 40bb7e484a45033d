// DrawBins: a histogram of a row's logits by their distance from the largest, in bins of 1/64, with
// the number of ids and the mass of each bin. It shows in which bins the thresholds of top-k and
// top-p and the last id to be listed must lie, so that only the ids of those bins need exact
// comparisons. Used by draw_kernel.cu only.
#pragma once

#include "rollout_server/engine/cuda/draw/draw_row.h"

namespace tandem::rollout::cuda {

// The least x of all threads, returned to all of them.
__device__ inline Wide BlockLeast(Wide x, Shared& shared) {
  for (int step = kWarp / 2; step > 0; step /= 2) {
    x = min(x, __shfl_xor_sync(kAllLanes, x, step));
  }
  if (threadIdx.x % kWarp == 0) shared.of_warps[threadIdx.x / kWarp] = x;
  __syncthreads();
  for (int w = 0; w < kRowWarps; ++w) x = min(x, shared.of_warps[w]);
  __syncthreads();
  return x;
}

struct Found {
  int bin;     // -1: `wanted` is not reached
  Wide above;  // the sum before the bin
};

// The first bin at which the running sum reaches `wanted`, and the sum before it; called by all
// threads. A thread has kBinsEach neighbouring bins; a prefix sum over lanes and then over warps
// gives each thread the sum before its bins.
template <typename T>
__device__ inline Found FindBin(const T* values, double wanted, Shared& shared) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int warp = static_cast<int>(threadIdx.x) / kWarp,
            first = kBinsEach * static_cast<int>(threadIdx.x);
  Wide own = 0;
  for (int i = 0; i < kBinsEach; ++i) own += values[first + i];
  Wide up_to = own;  // of this lane and those before it
  for (int step = 1; step < kWarp; step *= 2) {
    const Wide before = __shfl_up_sync(kAllLanes, up_to, step);
    if (lane >= step) up_to += before;
  }
  if (lane == kWarp - 1) shared.of_warps[warp] = up_to;
  if (threadIdx.x == 0) shared.found = -1;
  __syncthreads();
  Wide above = up_to - own;
  for (int w = 0; w < warp; ++w) above += shared.of_warps[w];
  for (int i = 0; i < kBinsEach; ++i) {
    const Wide value = values[first + i];
    const bool first_there = above == 0 || static_cast<double>(above) < wanted;
    if (value > 0 && first_there && static_cast<double>(above + value) >= wanted) {
      shared.found = first + i;
      shared.above = above;
    }
    above += value;
  }
  __syncthreads();
  const Found found = {shared.found, shared.above};
  __syncthreads();
  return found;
}

// The bins that hold the thresholds. -1: none.
struct Bounds {
  int k = -1;                     // the bin of the last id that top-k keeps
  Wide above_k = 0;               // number of ids in the bins before k
  Wide weight_before_k = 0;       // their mass; without top-k the mass of all ids
  int first_p = -1, last_p = -1;  // the last id that top-p keeps is in one of these bins
  Wide above_p = 0;               // mass of the bins before first_p
  int last_top = -1;              // the most likely ids are in bins up to this one
  __device__ bool Has(int bin) const {
    return bin == k || bin <= last_top || (bin >= first_p && bin <= last_p);
  }
};

class DrawBins : public DrawRow {
 protected:
  using DrawRow::DrawRow;

  __device__ void FillBins() {
    for (int i = static_cast<int>(threadIdx.x); i < kBins; i += kRowThreads) {
      shared_.bins.weight[i] = 0;
      shared_.bins.count[i] = 0;
    }
    __syncthreads();
    Visit([&](float logit, int id) {
      if (!Listable(logit, id)) return;
      const int bin = BinOf(logit);
      atomicAdd(&shared_.bins.count[bin], 1u);
      const Wide weight = cuts_p_ ? WeightOf(logit, id) : 0;
      if (weight > 0) atomicAdd(&shared_.bins.weight[bin], weight);
    });
    __syncthreads();
    for (int i = static_cast<int>(threadIdx.x); i < kBins; i += kRowThreads) {
      if (shared_.bins.count[i] == 0) continue;
      atomicAdd(&space_.count[i], shared_.bins.count[i]);
      if (shared_.bins.weight[i] > 0) atomicAdd(&space_.weight[i], shared_.bins.weight[i]);
    }
  }

  // The mass of bins [0, end), returned to all threads.
  __device__ Wide WeightBefore(int end) {
    Wide sum = 0;
    for (int i = static_cast<int>(threadIdx.x); i < end; i += kRowThreads) sum += space_.weight[i];
    sum = BlockSum(sum, shared_.of_warps);
    __syncthreads();
    return sum;
  }

  __device__ Bounds FindBounds() {
    Bounds bounds;
    if (cuts_k_) {
      const Found found = FindBin(space_.count, static_cast<double>(draw_.top_k), shared_);
      bounds.k = found.bin;
      bounds.above_k = found.above;
    }
    if (cuts_p_) {
      // How much of bin k top-k keeps is not known yet, so the mass that top-p takes its share of
      // lies between the sums without and with that bin.
      bounds.weight_before_k = WeightBefore(bounds.k < 0 ? kBins : bounds.k);
      const Wide with_k =
          bounds.k < 0 ? bounds.weight_before_k : bounds.weight_before_k + space_.weight[bounds.k];
      const double top_p = static_cast<double>(draw_.top_p);
      const Found first =
          FindBin(space_.weight, top_p * static_cast<double>(bounds.weight_before_k), shared_);
      const Found last = FindBin(space_.weight, top_p * static_cast<double>(with_k), shared_);
      bounds.first_p = first.bin;
      bounds.above_p = first.above;
      bounds.last_p = last.bin;
    }
    if (draw_.num_top > 0) {
      const Found found = FindBin(space_.count, static_cast<double>(draw_.num_top), shared_);
      bounds.last_top = found.bin < 0 ? kBins - 1 : found.bin;
    }
    return bounds;
  }
};

}  // namespace tandem::rollout::cuda
