// DrawCuts: the exact thresholds of top-k and top-p without sorting a row. Only ids in the bins
// that DrawBins found can be at a threshold; they are in a list, and each is compared with all
// others of it (kListed^2 comparisons at most, spread over the block). When the list is too short,
// the threshold is found by radix selection over the whole row: its key is narrowed down by 11 bits
// a pass (Alabi et al., "Fast k-selection algorithms for graphics processing units", JEA 2012).
//
// Invariant: counts and masses are integers, so a threshold does not depend on the order in which
// threads add. Used by draw_kernel.cu only.
#pragma once

#include "rollout_server/engine/cuda/draw/draw_bins.h"

namespace tandem::rollout::cuda {

class DrawCuts : public DrawBins {
 protected:
  using DrawBins::DrawBins;

  __device__ void FindCuts() {
    top_k_ = top_p_ = Cut{0, 0};
    if (!cuts_k_ && !cuts_p_) return;
    if (space_.listed > kListed) return FindCutsByDigits();
    const Bounds bounds = FindBounds();
    const int listed = static_cast<int>(space_.listed);
    for (int i = static_cast<int>(threadIdx.x); i < listed; i += kRowThreads) {
      shared_.list.keys[i] = space_.list[i];
    }
    __syncthreads();
    if (bounds.k >= 0) top_k_ = CutOfTopK(bounds, listed);
    if (!cuts_p_ || bounds.last_p < 0) return;
    Wide more = 0;  // mass that top-k keeps of its bin
    for (int i = static_cast<int>(threadIdx.x); i < listed; i += kRowThreads) {
      const Wide key = shared_.list.keys[i];
      const int id = IdOf(key);
      const bool kept = top_k_.keeps(key);
      shared_.list.weights[i] = kept ? WeightOf(logits_[id], id) : 0;
      if (BinOf(logits_[id]) == bounds.k) more += shared_.list.weights[i];
    }
    more = BlockSum(more, shared_.of_warps);
    __syncthreads();
    top_p_ = CutOfTopP(bounds, listed, bounds.weight_before_k + more);
  }

  // Keeps each id with fewer than top_k larger logits; ties stay.
  __device__ Cut CutOfTopK(const Bounds& bounds, int listed) {
    Wide least = ~0ull;
    for (int i = static_cast<int>(threadIdx.x); i < listed; i += kRowThreads) {
      const Wide logit = shared_.list.keys[i] >> 32;
      if (BinOf(logits_[IdOf(shared_.list.keys[i])]) != bounds.k) continue;
      Wide above = bounds.above_k;
      for (int j = 0; j < listed; ++j) {
        const Wide other = shared_.list.keys[j];
        above += other >> 32 > logit && BinOf(logits_[IdOf(other)]) == bounds.k;
      }
      if (above < static_cast<Wide>(draw_.top_k)) least = min(least, logit);
    }
    return {32, BlockLeast(least, shared_)};
  }

  // Keeps each id with less than top_p of the mass above it.
  __device__ Cut CutOfTopP(const Bounds& bounds, int listed, Wide mass) {
    const double wanted = static_cast<double>(draw_.top_p) * static_cast<double>(mass);
    Wide least = ~0ull;
    for (int i = static_cast<int>(threadIdx.x); i < listed; i += kRowThreads) {
      const Wide key = shared_.list.keys[i];
      const int bin = BinOf(logits_[IdOf(key)]);
      if (bin < bounds.first_p || bin > bounds.last_p || !top_k_.keeps(key)) continue;
      Wide above = bounds.above_p;
      for (int j = 0; j < listed; ++j) {
        const Wide other = shared_.list.keys[j];
        if (other > key && BinOf(logits_[IdOf(other)]) >= bounds.first_p) {
          above += shared_.list.weights[j];
        }
      }
      if (static_cast<double>(above) < wanted) least = min(least, key);
    }
    least = BlockLeast(least, shared_);
    return least == ~0ull ? Cut{0, 0} : Cut{0, least};
  }

  // The same thresholds without the list, in passes over the whole row.
  __device__ void FindCutsByDigits() {
    if (cuts_k_) {
      const auto one = [&](float logit, int id) -> Wide {
        return logit > -kRowInfinity && Allowed(id);
      };
      top_k_ = FindCut(one, static_cast<double>(draw_.top_k), /*last_shift=*/32);
    }
    if (!cuts_p_) return;
    const auto mass = [&](float logit, int id) -> Wide {
      return top_k_.keeps(KeyOf(logit, id)) ? WeightOf(logit, id) : 0;
    };
    Wide total = 0;
    for (int id = static_cast<int>(threadIdx.x); id < size_; id += kRowThreads) {
      total += mass(logits_[id], id);
    }
    total = BlockSum(total, shared_.of_warps);
    top_p_ = FindCut(mass, static_cast<double>(draw_.top_p) * static_cast<double>(total), 0);
  }

  // The cut that keeps each id with less than `wanted` weight in ids of larger keys. Each pass
  // makes a histogram of the next 11 bits of the keys with the prefix found so far, and so finds 11
  // more bits of the last kept key.
  template <typename WeightOfId>
  __device__ Cut FindCut(const WeightOfId& weight_of, double wanted, int last_shift) {
    Wide prefix = 0, above = 0;
    int prefix_shift = 64;
    while (prefix_shift > last_shift) {
      const int shift = max(last_shift, prefix_shift - 11);
      const unsigned last = (1u << (prefix_shift - shift)) - 1;
      for (int i = static_cast<int>(threadIdx.x); i < kBins; i += kRowThreads) {
        shared_.bins.weight[i] = 0;
        shared_.bins.count[i] = 0;
      }
      __syncthreads();
      for (int id = static_cast<int>(threadIdx.x); id < size_; id += kRowThreads) {
        const float logit = logits_[id];
        const Wide key = KeyOf(logit, id);
        if (prefix_shift < 64 && key >> prefix_shift != prefix) continue;
        const Wide weight = weight_of(logit, id);
        if (weight == 0) continue;
        // The largest digit has the first bin.
        const unsigned bin = last - (static_cast<unsigned>(key >> shift) & last);
        atomicAdd(&shared_.bins.weight[bin], weight);
        atomicAdd(&shared_.bins.count[bin], 1u);
      }
      __syncthreads();
      const Found found =
          FindBin(shared_.bins.weight, wanted - static_cast<double>(above), shared_);
      if (found.bin < 0) return {0, 0};  // less than `wanted` in all: nothing is cut
      above += found.above;
      const unsigned count = shared_.bins.count[found.bin];
      prefix = (prefix_shift < 64 ? prefix << (prefix_shift - shift) : 0) |
               (last - static_cast<unsigned>(found.bin));
      prefix_shift = shift;
      __syncthreads();
      if (count == 1) break;
    }
    return {prefix_shift, prefix};
  }
};

}  // namespace tandem::rollout::cuda
