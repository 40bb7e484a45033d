// The ids over which the softmax of a row of logits goes, in the trainer's kernels (stages 5 and
// 7). For .cu files only.
#pragma once

#include "common/cuda/device.h"
#include "trainer/policy/cuda/training_kernels.h"

namespace tandem::trainer::cuda {

// Rising ids. Count 0: the whole vocabulary.
struct Support {
  const int32_t* ids = nullptr;
  int64_t count = 0;
};

__device__ inline Support SupportOf(const LogitRows& rows, int64_t row) {
  if (rows.support_offsets == nullptr) return {};
  const int64_t begin = rows.support_offsets[row];
  return {rows.support_ids + begin, rows.support_offsets[row + 1] - begin};
}

// The first of ids[begin] .. ids[end - 1] that is not below `id`, or `end`.
__device__ inline int64_t FirstFrom(const int32_t* ids, int64_t begin, int64_t end, int64_t id) {
  while (begin < end) {
    const int64_t middle = (begin + end) / 2;
    if (ids[middle] < id) {
      begin = middle + 1;
    } else {
      end = middle;
    }
  }
  return begin;
}

// Walks a support along rising ids.
class SupportWalk {
 public:
  __device__ explicit SupportWalk(const Support& support) : support_(support) {}

  // Whether `id`, larger than the one asked for before, is in the support.
  __device__ bool Has(int id) {
    // Ids rise in the support too, so between the last id and this one there are no more of them
    // than the difference of the two.
    const int64_t last = min(support_.count, at_ + (id - asked_));
    at_ = FirstFrom(support_.ids, at_, last, id);
    asked_ = id;
    return at_ < support_.count && support_.ids[at_] == id;
  }

 private:
  const Support support_;
  int64_t at_ = 0;  // the first that is not below asked_
  int asked_ = 0;
};

}  // namespace tandem::trainer::cuda
