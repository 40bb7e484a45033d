#include "trainer/parameter_buckets.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/zeros.h>

#include "common/base/check.h"

namespace tandem::trainer {

ParameterBuckets::ParameterBuckets(const std::vector<NamedParameter>* parameters,
                                   comm::Collective* group, int64_t bucket_bytes)
    : group_(group != nullptr && group->size() > 1 ? group : nullptr) {
  if (group_ == nullptr) return;
  const at::NoGradGuard no_grad;
  std::vector<int64_t> sizes;
  for (const NamedParameter& parameter : *parameters) sizes.push_back(parameter.master.numel());
  bucket_of_.resize(sizes.size());
  for (BucketPlan& plan : PlanBuckets(sizes, bucket_bytes / 4)) {
    const at::Tensor gradients = at::zeros({plan.num_elements});
    for (const Placement& at : plan.placements) {
      const at::Tensor& master = (*parameters)[at.parameter].master;
      master.mutable_grad() = gradients.narrow(0, at.offset, at.num_elements).view(master.sizes());
      bucket_of_[at.parameter] = buckets_.size();
    }
    const size_t count = plan.placements.size();
    buckets_.push_back({std::move(plan), gradients, count});
  }
}

void ParameterBuckets::BeginNext() {
  under_way_.push_back(group_->StartAllReduce(buckets_[under_way_.size()].gradients));
}

void ParameterBuckets::GradientIsComplete(size_t parameter) {
  if (group_ == nullptr) return;
  Bucket& completed = buckets_[bucket_of_[parameter]];
  TANDEM_CHECK(completed.num_incomplete > 0);
  --completed.num_incomplete;
  while (under_way_.size() < buckets_.size() && buckets_[under_way_.size()].num_incomplete == 0) {
    BeginNext();
  }
}

absl::Status ParameterBuckets::FinishGradients() {
  while (under_way_.size() < buckets_.size()) BeginNext();
  // All are waited for, also after one failed: the buckets are theirs until then.
  absl::Status first = absl::OkStatus();
  for (comm::Pending& sum : under_way_) first.Update(sum.Wait());
  under_way_.clear();
  for (Bucket& bucket : buckets_) bucket.num_incomplete = bucket.plan.placements.size();
  return first;
}

}  // namespace tandem::trainer
