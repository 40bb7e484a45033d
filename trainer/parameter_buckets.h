// ParameterBuckets: the gradients of ranks that train together, in flat buckets that are summed
// over the ranks while the backward pass goes on. Used by train_step.cc.
//
// The sum of a bucket begins when the last gradient of it is written by the last row that this rank
// has in an update. Buckets begin in one order on all ranks, whatever their rows. All ranks get the
// same bits: a sum is made once, by the collective.
//
// Use from one thread at a time. Memory: the gradients, once; operations under way hold what c10d
// copies.
#ifndef TANDEM_TRAINER_PARAMETER_BUCKETS_H_
#define TANDEM_TRAINER_PARAMETER_BUCKETS_H_

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "common/comm/collective.h"
#include "trainer/bucket_plan.h"
#include "trainer/policy.h"

namespace tandem::trainer {

class ParameterBuckets {
 public:
  // With a group of several: gradients become zeros that lie in buckets of at most `bucket_bytes`,
  // and keep their storage. Null, or alone: nothing is moved, and nothing is ever sent.
  // `parameters` and `group` must outlive this object.
  ParameterBuckets(const std::vector<NamedParameter>* parameters, comm::Collective* group,
                   int64_t bucket_bytes);

  // Nothing more will be added to the gradient of `parameter` before FinishGradients. At most once
  // for each between two of those. Begins the sums of buckets that are complete, in their order.
  void GradientIsComplete(size_t parameter);

  // Begins the sums that did not begin yet, and waits for all: every gradient is now its sum over
  // the ranks. All ranks call it, after a backward pass or without one. Errors: those of the
  // collective.
  absl::Status FinishGradients();

 private:
  struct Bucket {
    BucketPlan plan;
    at::Tensor gradients;  // [plan.num_elements] float32
    size_t num_incomplete = 0;
  };

  void BeginNext();

  comm::Collective* const group_;  // null when alone
  std::vector<Bucket> buckets_;
  std::vector<size_t> bucket_of_;         // [parameter]
  std::vector<comm::Pending> under_way_;  // of the first buckets
};

}  // namespace tandem::trainer

#endif  // TANDEM_TRAINER_PARAMETER_BUCKETS_H_
