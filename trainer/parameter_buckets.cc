#include "trainer/parameter_buckets.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <tuple>
#include <utility>

#include "common/base/check.h"
#include "common/base/status_macros.h"

namespace tandem::trainer {
namespace {

// The parameter's place in a bucket.
at::Tensor ViewOf(const at::Tensor& bucket, const Placement& placed, const at::Tensor& like) {
  return bucket.narrow(0, placed.offset, placed.num_elements).view(like.sizes());
}

std::vector<Slice> Sorted(std::vector<Slice> slices) {
  std::ranges::sort(slices, {}, [](const Slice& s) { return std::tuple(s.parameter, s.begin); });
  return slices;
}

// All are waited for, also after one failed: their memory is theirs until then.
absl::Status WaitForAll(std::vector<comm::Pending>& operations) {
  absl::Status first = absl::OkStatus();
  for (comm::Pending& operation : operations) first.Update(operation.Wait());
  operations.clear();
  return first;
}

}  // namespace

ParameterBuckets::ParameterBuckets(const std::vector<NamedParameter>* parameters,
                                   comm::Collective* group, int64_t bucket_bytes)
    : parameters_(parameters), group_(group != nullptr && group->size() > 1 ? group : nullptr) {
  const at::NoGradGuard no_grad;
  std::vector<int64_t> sizes;
  for (const NamedParameter& parameter : *parameters) sizes.push_back(parameter.master.numel());
  if (group_ == nullptr) {
    slices_.resize(1);
    for (size_t i = 0; i < sizes.size(); ++i) slices_[0].push_back({i, 0, sizes[i]});
    return;
  }
  bucket_of_.resize(sizes.size());
  slices_.resize(static_cast<size_t>(group_->size()));
  for (BucketPlan& plan : PlanBuckets(sizes, group_->size(), bucket_bytes / 4)) {
    const at::Tensor masters = at::zeros({plan.num_elements});
    const at::Tensor gradients = at::zeros({plan.num_elements});
    for (const Placement& placed : plan.placements) {
      const at::Tensor& master = (*parameters)[placed.parameter].master;
      const at::Tensor moved = ViewOf(masters, placed, master);
      moved.copy_(master);
      master.set_data(moved);
      master.mutable_grad() = ViewOf(gradients, placed, master);
      bucket_of_[placed.parameter] = buckets_.size();
    }
    for (size_t r = 0; r < slices_.size(); ++r) {
      const auto slices = SlicesOf(plan, group_->size(), static_cast<int>(r));
      slices_[r].insert(slices_[r].end(), slices.begin(), slices.end());
    }
    const size_t count = plan.placements.size();
    buckets_.push_back({std::move(plan), masters, gradients, count});
  }
  for (std::vector<Slice>& of_rank : slices_) of_rank = Sorted(std::move(of_rank));
}

at::Tensor ParameterBuckets::OwnPart(const at::Tensor& of_bucket) const {
  const int64_t part = of_bucket.numel() / group_->size();
  return of_bucket.narrow(0, part * group_->rank(), part);
}

void ParameterBuckets::BeginNext() {
  const at::Tensor& gradients = buckets_[under_way_.size()].gradients;
  under_way_.push_back(group_->StartReduceScatter(gradients, OwnPart(gradients)));
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
  if (group_ == nullptr) return absl::OkStatus();
  while (under_way_.size() < buckets_.size()) BeginNext();
  TANDEM_RETURN_IF_ERROR(WaitForAll(under_way_));
  for (Bucket& bucket : buckets_) {
    bucket.num_incomplete = bucket.plan.placements.size();
    const int64_t part = bucket.gradients.numel() / group_->size();
    const int64_t end = part * (group_->rank() + 1);
    bucket.gradients.narrow(0, 0, end - part).zero_();
    bucket.gradients.narrow(0, end, bucket.gradients.numel() - end).zero_();
  }
  return absl::OkStatus();
}

absl::Status ParameterBuckets::ShareMasters() {
  std::vector<comm::Pending> under_way;
  for (const Bucket& bucket : buckets_) {
    under_way.push_back(group_->StartAllGather(OwnPart(bucket.masters), bucket.masters));
  }
  return WaitForAll(under_way);
}

absl::StatusOr<at::Tensor> ParameterBuckets::Collect(size_t parameter,
                                                     const std::vector<at::Tensor>& own) const {
  if (group_ == nullptr) return own.front();
  at::Tensor whole;
  if (rank() == 0) whole = at::empty({(*parameters_)[parameter].master.numel()});
  size_t next = 0;  // of the own ones
  for (size_t owner = 0; owner < slices_.size(); ++owner) {
    for (const Slice& slice : slices_[owner]) {
      if (slice.parameter != parameter) continue;
      at::Tensor sent = owner == rank() ? own[next++] : at::empty({slice.num_elements});
      if (owner != 0) TANDEM_RETURN_IF_ERROR(group_->Broadcast(sent, static_cast<int>(owner)));
      if (rank() == 0) whole.narrow(0, slice.begin, slice.num_elements).copy_(sent);
    }
  }
  return whole;
}

}  // namespace tandem::trainer
