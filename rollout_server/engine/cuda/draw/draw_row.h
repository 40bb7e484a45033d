// DrawRow: one draw in the thread blocks that share its row of logits: the state that stays in
// memory between the launches, and the terms of the row's sums. Used by draw_kernel.cu only.
#pragma once

#include "common/cuda/row_distribution.h"
#include "rollout_server/engine/cuda/draw/draw_kernel.h"

namespace tandem::rollout::cuda {

using namespace tandem::cuda;  // row_distribution.h, device.h
using Wide = unsigned long long;

inline constexpr int kBins = 2048;
inline constexpr int kBinsEach = kBins / kRowThreads;
inline constexpr float kBinsPerUnit = 64.0f;
inline constexpr int kListed = 1024;
inline constexpr int kMostParts = 32;
inline constexpr int kLeastPart = 4;       // segments
inline constexpr int kBlocksWanted = 256;  // about two for each multiprocessor of a large device

// Maps floats to integers in the same order.
__device__ inline uint32_t Ordered(float x) {
  const uint32_t bits = __float_as_uint(x);
  return bits >> 31 ? ~bits : bits | 0x80000000u;
}

// A key whose order is that in which filters keep ids: by logit, of equal ones the higher id first.
__device__ inline Wide KeyOf(float logit, int id) {
  return static_cast<Wide>(Ordered(logit)) << 32 | static_cast<uint32_t>(id);
}
__device__ inline int IdOf(Wide key) { return static_cast<int>(key & 0x7fffffffu); }

// A filter's threshold: it keeps the ids whose shifted key is at least `least`.
struct Cut {
  int shift;
  Wide least;
  __device__ bool keeps(Wide key) const { return key >> shift >= least; }
};

// The order of the scored id among the logits.
struct Order {
  float largest, second;
  int32_t larger;  // than the id's
};

struct SegmentSums {
  RowSums allowed, raw, kept;
  double squared, above;  // for scores: sum e^2, and mass of the ids with larger logits
};

// The state of a draw between the launches, in global memory.
struct Space {
  RowLargest parts[kMostParts];
  Order orders[kMostParts];
  Wide weight[kBins];
  unsigned int count[kBins];
  Wide list[kListed];
  unsigned int listed;  // may be more than kListed
  Cut top_k, top_p;
};
static_assert(sizeof(Space) <= 36 * 1024 && sizeof(SegmentSums) <= 96);
static_assert(DrawWorkspaceBytes(1, 1) >=
              static_cast<int64_t>(sizeof(Space) + sizeof(SegmentSums)));

struct Shared {
  union {
    struct {
      Wide weight[kBins];
      unsigned int count[kBins];
    } bins;
    struct {
      Wide keys[kListed], weights[kListed];
    } list;
    double segment_mass[kMaxRowSegments];
  };
  RowShared row;
  Order orders[kRowWarps];
  Wide of_warps[kRowWarps];
  int found;
  Wide above;
  double log_mass;
};

class DrawRow {
 public:
  __device__ DrawRow(const DrawTask& task, int64_t first_draw, int parts, Shared& shared)
      : task_(task),
        parts_(parts),
        index_(first_draw + blockIdx.y),
        draw_(task.draws[index_]),
        size_(static_cast<int>(task.vocabulary)),
        logits_(task.logits + draw_.row * task.vocabulary),
        forbidden_(task.forbidden + draw_.first_forbidden),
        space_(static_cast<Space*>(task.workspace)[blockIdx.y]),
        shared_(shared) {
    const int64_t together = min(task.num_draws - first_draw, kDrawsTogether);
    auto* const segments =
        reinterpret_cast<SegmentSums*>(static_cast<Space*>(task.workspace) + together);
    num_segments_ = NumSegments(size_);
    segments_ = segments + static_cast<int64_t>(blockIdx.y) * num_segments_;
    first_segment_ = static_cast<int>(static_cast<int64_t>(num_segments_) * blockIdx.x / gridDim.x);
    end_segment_ =
        static_cast<int>(static_cast<int64_t>(num_segments_) * (blockIdx.x + 1) / gridDim.x);
    greedy_ = draw_.temperature == 0;
    filtered_ = !greedy_ && (draw_.top_k > 0 || draw_.top_p < 1 || draw_.min_p > 0);
    cuts_k_ = filtered_ && draw_.top_k > 0 && draw_.top_k < size_;
    cuts_p_ = filtered_ && draw_.top_p < 1;
  }

 protected:
  static __device__ int Lane() { return static_cast<int>(threadIdx.x) % kWarp; }
  static __device__ int Warp() { return static_cast<int>(threadIdx.x) / kWarp; }
  __device__ int Begin() const { return first_segment_ * SegmentSize(size_); }
  __device__ int End() const { return min(size_, end_segment_ * SegmentSize(size_)); }
  __device__ bool Binned() const { return cuts_k_ || cuts_p_ || draw_.num_top > 0; }
  // Do the sums over the untouched logits differ from those over the ids that may be sampled?
  __device__ bool OfRaw() const {
    return greedy_ || draw_.num_forbidden != 0 || draw_.temperature != 1.0f;
  }

  template <typename Call>
  __device__ void Visit(const Call& call) const {
    VisitLogits(logits_, Begin(), End(), static_cast<int>(threadIdx.x), kRowThreads, call);
  }

  // Merges the parts' largest logits. False when nothing can be sampled.
  __device__ bool Settle() {
    largest_ = space_.parts[0];
    for (int p = 1; p < parts_; ++p) MergeLargest(space_.parts[p], largest_);
    SettleLargest(largest_);
    if (largest_.broken || largest_.allowed == -kRowInfinity) return false;
    raw_ = {largest_.all, 1.0f};
    scale_ = greedy_ ? raw_ : RowScale{largest_.allowed, 1.0f / draw_.temperature};
    if (draw_.min_p > 0) least_ = log(static_cast<double>(draw_.min_p));
    return true;
  }

  __device__ bool Allowed(int id) const {
    if (draw_.num_forbidden == kForbiddenBits) return (forbidden_[id / 32] >> (id % 32) & 1) == 0;
    int begin = 0, end = draw_.num_forbidden;
    while (begin < end) {
      const int middle = (begin + end) / 2;
      if (forbidden_[middle] < id) {
        begin = middle + 1;
      } else {
        end = middle;
      }
    }
    return begin == draw_.num_forbidden || forbidden_[begin] != id;
  }

  __device__ RowSums Term(float logit, int id) const {
    const RowSums term = scale_.Term(logit);
    return term.mass > 0 && Allowed(id) ? term : RowSums{};
  }
  __device__ bool Kept(float logit, int id) const {
    const Wide key = KeyOf(logit, id);
    return logit > -kRowInfinity && top_k_.keeps(key) && top_p_.keeps(key) &&
           scale_.Y(logit) >= least_ && Allowed(id);
  }
  __device__ RowSums KeptTerm(float logit, int id) const {
    return Kept(logit, id) ? scale_.WideTerm(logit) : RowSums{};
  }

  // Mass as an integer in units of 2^-40 of the largest term, so that sums do not depend on the
  // order.
  __device__ Wide WeightOf(float logit, int id) const {
    return static_cast<Wide>(Term(logit, id).mass * 0x1p40);
  }
  // The bin of a listable id's logit; it rises as logits fall.
  __device__ int BinOf(float logit) const {
    const float below = __fmul_rn(scale_.largest - logit, kBinsPerUnit);
    return below >= kBins - 1 ? kBins - 1 : static_cast<int>(below);
  }
  // May the id be listed among the most likely? Greedy lists ids of the untouched distribution.
  __device__ bool Listable(float logit, int id) const {
    return logit > -kRowInfinity && (greedy_ || Allowed(id));
  }

  const DrawTask& task_;
  const int parts_;  // thread blocks that share the row, except in Finish
  const int64_t index_;
  const Draw draw_;
  const int size_;
  const float* const logits_;
  const int32_t* const forbidden_;
  Space& space_;
  Shared& shared_;
  SegmentSums* segments_;
  int num_segments_, first_segment_, end_segment_;
  bool greedy_, filtered_, cuts_k_, cuts_p_;
  RowLargest largest_ = {};
  RowScale raw_ = {}, scale_ = {};  // of the untouched logits; of the allowed ones, tempered
  Cut top_k_ = {}, top_p_ = {};
  double least_ = -static_cast<double>(kRowInfinity);  // the least y that min-p keeps
};

}  // namespace tandem::rollout::cuda
