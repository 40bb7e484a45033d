#include "trainer/optimizer/parameter_buckets.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <tuple>
#include <utility>

#include "common/base/check.h"
#include "common/base/status_macros.h"
#include "trainer/policy/tensor_memory.h"

namespace tandem::trainer {
namespace {

// The parameter's elements in a bucket, in its own shape.
at::Tensor ViewOf(const at::Tensor& bucket, const Placement& placed, const at::Tensor& like) {
  return bucket.narrow(0, placed.offset, placed.num_elements).view(like.sizes());
}

std::vector<Slice> Sorted(std::vector<Slice> slices) {
  std::ranges::sort(slices, {}, [](const Slice& s) { return std::tuple(s.parameter, s.begin); });
  return slices;
}

// Waits for all operations, also after one failed: until then they use their memory. Returns the
// first failure.
absl::Status WaitForAll(std::vector<comm::Pending>& operations) {
  absl::Status first = absl::OkStatus();
  for (comm::Pending& operation : operations) first.Update(operation.Wait());
  operations.clear();
  return first;
}

comm::Collective* ParameterCollective(const RankCollectives& collectives) {
  if (collectives.values == nullptr || collectives.values->size() == 1) return nullptr;
  return collectives.parameters == nullptr ? collectives.values : collectives.parameters;
}

// For each stage, the parameters that no later stage uses: their gradients are complete after it. A
// head that is tied to the embedding is completed by the embedding's stage, the last one.
std::vector<std::vector<size_t>> CompletedBy(const std::vector<std::vector<size_t>>& stages,
                                             size_t num_parameters) {
  std::vector<size_t> last(num_parameters, 0);
  for (size_t s = 0; s < stages.size(); ++s) {
    for (const size_t parameter : stages[s]) last[parameter] = s;
  }
  std::vector<std::vector<size_t>> completed(stages.size());
  for (size_t i = 0; i < num_parameters; ++i) completed[last[i]].push_back(i);
  return completed;
}

}  // namespace

ParameterBuckets::ParameterBuckets(const std::vector<NamedParameter>* parameters,
                                   const std::vector<std::vector<size_t>>& stages,
                                   const RankCollectives& collectives, const BucketOptions& options)
    : parameters_(parameters),
      collective_(ParameterCollective(collectives)),
      values_(collectives.values),
      sharded_(collective_ != nullptr && options.shard_parameters) {
  const at::NoGradGuard no_grad;
  std::vector<int64_t> sizes;
  for (const NamedParameter& parameter : *parameters) sizes.push_back(parameter.master.numel());
  if (collective_ == nullptr) {
    slices_.resize(1);
    for (size_t i = 0; i < sizes.size(); ++i) {
      slices_[0].push_back({i, 0, sizes[i]});
      if (!IsStored((*parameters)[i].master)) trainer::SetStored((*parameters)[i].master, true);
    }
    return;
  }
  completed_ = CompletedBy(stages, sizes.size());
  bucket_of_.resize(sizes.size());
  slices_.resize(static_cast<size_t>(collective_->size()));
  std::vector<BucketPlan> plans =
      sharded_ ? PlanStageBuckets(sizes, stages, collective_->size(), bucket_of_stage_)
               : PlanBuckets(sizes, collective_->size(), options.bucket_bytes / 4);
  for (BucketPlan& plan : plans) {
    for (size_t r = 0; r < slices_.size(); ++r) {
      const auto slices = SlicesOf(plan, collective_->size(), static_cast<int>(r));
      slices_[r].insert(slices_[r].end(), slices.begin(), slices.end());
    }
    const size_t count = plan.placements.size();
    buckets_.push_back({.plan = std::move(plan), .num_incomplete = count});
    MoveInto(buckets_.size() - 1, (*parameters)[0].master.requires_grad());
  }
  for (std::vector<Slice>& slices : slices_) slices = Sorted(std::move(slices));
}

// Moves the parameters of a bucket into it: each master, and its gradient, becomes a view. A
// sharded bucket keeps only the values of its own part, and gives its whole memory back afterwards;
// that memory is never written here, so that a model which does not fit one rank can be placed.
void ParameterBuckets::MoveInto(size_t index, bool trainable) {
  Bucket& bucket = buckets_[index];
  const int64_t size = bucket.plan.num_elements;
  const at::TensorOptions like = (*parameters_)[0].master.options();
  const auto whole = [&] { return sharded_ ? at::empty({size}, like) : at::zeros({size}, like); };
  bucket.masters = whole();
  if (trainable) bucket.gradients = whole();
  const int64_t part = size / collective_->size(), begin = part * collective_->rank();
  const auto own = [&](const at::Tensor& of_bucket) {
    return sharded_ ? at::zeros({part}, like) : OwnPart(of_bucket);
  };
  bucket.own_masters = own(bucket.masters);
  if (trainable) bucket.own_gradients = own(bucket.gradients);
  for (const Placement& placed : bucket.plan.placements) {
    const at::Tensor& master = (*parameters_)[placed.parameter].master;
    const at::Tensor moved = ViewOf(bucket.masters, placed, master);
    const bool has_values = IsStored(master);
    if (!sharded_ && has_values) moved.copy_(master);
    const int64_t from = std::max(begin, placed.offset);
    const int64_t to = std::min(begin + part, placed.offset + placed.num_elements);
    if (sharded_ && has_values && from < to) {
      bucket.own_masters.narrow(0, from - begin, to - from)
          .copy_(master.view(-1).narrow(0, from - placed.offset, to - from));
    }
    master.set_data(moved);
    if (trainable) master.mutable_grad() = ViewOf(bucket.gradients, placed, master);
    bucket_of_[placed.parameter] = index;
  }
  if (!sharded_) return;
  trainer::SetStored(bucket.masters, false);
  if (trainable) trainer::SetStored(bucket.gradients, false);
}

at::Tensor ParameterBuckets::OwnPart(const at::Tensor& of_bucket) const {
  const int64_t part = of_bucket.numel() / collective_->size();
  return of_bucket.narrow(0, part * collective_->rank(), part);
}

std::vector<at::Tensor> ParameterBuckets::OwnOf(at::Tensor Bucket::*parts, bool gradients) const {
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> own;
  for (const Slice& slice : own_slices()) {
    const at::Tensor& master = (*parameters_)[slice.parameter].master;
    if (collective_ == nullptr) {
      own.push_back((gradients ? master.grad() : master.detach()).view(-1));
      continue;
    }
    const Bucket& bucket = buckets_[bucket_of_[slice.parameter]];
    const auto placed =
        std::ranges::find(bucket.plan.placements, slice.parameter, &Placement::parameter);
    const int64_t begin = bucket.plan.num_elements / collective_->size() * collective_->rank();
    own.push_back(
        (bucket.*parts).narrow(0, placed->offset + slice.begin - begin, slice.num_elements));
  }
  return own;
}

int64_t ParameterBuckets::HeldBytes(bool gradients) const {
  int64_t elements = 0;
  if (collective_ == nullptr) {
    for (const NamedParameter& parameter : *parameters_) {
      const bool there = !gradients || parameter.master.grad().defined();
      if (there) elements += parameter.master.numel();
    }
  }
  for (const Bucket& bucket : buckets_) {
    const at::Tensor& own = gradients ? bucket.own_gradients : bucket.own_masters;
    if (own.defined()) elements += sharded_ ? own.numel() : bucket.plan.num_elements;
  }
  return elements * 4;
}

void ParameterBuckets::SetStored(Bucket& bucket, bool masters, bool gradients) {
  const int64_t bytes = bucket.plan.num_elements * 4;
  if (masters != bucket.has_masters) {
    trainer::SetStored(bucket.masters, masters);
    gathered_bytes_ += masters ? bytes : -bytes;
    bucket.has_masters = masters;
  }
  if (gradients != bucket.has_gradients) {
    trainer::SetStored(bucket.gradients, gradients);
    if (gradients) bucket.gradients.zero_();
    gathered_bytes_ += gradients ? bytes : -bytes;
    bucket.has_gradients = gradients;
  }
  peak_gathered_bytes_ = std::max(peak_gathered_bytes_, gathered_bytes_);
}

void ParameterBuckets::BeginGather(size_t index) {
  Bucket& bucket = buckets_[index];
  if (bucket.has_masters) return;
  SetStored(bucket, true, bucket.has_gradients);
  if (!failed_.ok()) {  // the pass goes on, over zeros
    bucket.masters.zero_();
    return;
  }
  bucket.gathering = collective_->StartAllGather(bucket.own_masters, bucket.masters);
}

void ParameterBuckets::Gather(size_t index) {
  BeginGather(index);
  Bucket& bucket = buckets_[index];
  if (!bucket.gathering.has_value()) return;
  const absl::Status gathered = bucket.gathering->Wait();
  bucket.gathering.reset();
  if (!gathered.ok()) bucket.masters.zero_();
  failed_.Update(gathered);
}

void ParameterBuckets::Release(size_t index) {
  Bucket& bucket = buckets_[index];
  if (bucket.gathering.has_value()) Gather(index);
  SetStored(bucket, false, bucket.has_gradients);
}

// Sharded: gathers the bucket of this stage, begins to gather that of the next one, and releases
// all others. A pass goes forward from the last stage to stage 0, and backward the other way.
void ParameterBuckets::BeginStage(Pass pass, size_t stage) {
  if (!sharded_) return;
  const bool last = pass == Pass::kForward ? stage == 0 : stage + 1 == bucket_of_stage_.size();
  const size_t next = last ? stage : pass == Pass::kForward ? stage - 1 : stage + 1;
  const size_t wanted[] = {bucket_of_stage_[stage], bucket_of_stage_[next]};
  for (size_t i = 0; i < buckets_.size(); ++i) {
    if (buckets_[i].has_masters && i != wanted[0] && i != wanted[1]) Release(i);
  }
  BeginGather(wanted[0]);
  BeginGather(wanted[1]);
  Gather(wanted[0]);
  if (pass == Pass::kForward) return;
  if (sum_.has_value() && sum_->bucket == wanted[0]) FinishSum();
  SetStored(buckets_[wanted[0]], true, true);
}

// Sharded, one sum is under way while the next stage is computed. Replicated, nothing is sent
// before the last pass, whose stages complete one bucket after another.
void ParameterBuckets::EndStage(Pass pass, size_t stage) {
  if (collective_ == nullptr || pass == Pass::kForward) return;
  if (!sharded_) {
    if (last_pass_) ParametersAreComplete(stage);
    return;
  }
  FinishSum();
  const size_t index = bucket_of_stage_[stage];
  Bucket& bucket = buckets_[index];
  if (!failed_.ok()) return SetStored(bucket, bucket.has_masters, false);
  const at::Tensor part = at::empty_like(bucket.own_gradients);
  sum_.emplace(Sum{index, part, collective_->StartReduceScatter(bucket.gradients, part)});
}

void ParameterBuckets::FinishSum() {
  if (!sum_.has_value()) return;
  Bucket& bucket = buckets_[sum_->bucket];
  const absl::Status summed = sum_->under_way.Wait();
  if (summed.ok()) bucket.own_gradients.add_(sum_->part);
  failed_.Update(summed);
  SetStored(bucket, bucket.has_masters, false);
  sum_.reset();
}

void ParameterBuckets::BeginNext() {
  const at::Tensor& gradients = buckets_[under_way_.size()].gradients;
  under_way_.push_back(collective_->StartReduceScatter(gradients, OwnPart(gradients)));
}

// Buckets are summed in the order of their numbers on every rank, so a bucket that is complete
// waits for those before it.
void ParameterBuckets::ParametersAreComplete(size_t stage) {
  for (const size_t parameter : completed_[stage]) {
    Bucket& completed = buckets_[bucket_of_[parameter]];
    TANDEM_CHECK(completed.num_incomplete > 0);
    --completed.num_incomplete;
  }
  while (under_way_.size() < buckets_.size() && buckets_[under_way_.size()].num_incomplete == 0) {
    BeginNext();
  }
}

absl::Status ParameterBuckets::FinishGradients() {
  last_pass_ = false;
  if (collective_ == nullptr) return absl::OkStatus();
  if (sharded_) {
    FinishSum();
    return failed_;
  }
  while (under_way_.size() < buckets_.size()) BeginNext();
  TANDEM_RETURN_IF_ERROR(WaitForAll(under_way_));
  for (Bucket& bucket : buckets_) {
    bucket.num_incomplete = bucket.plan.placements.size();
    const int64_t part = bucket.gradients.numel() / collective_->size();
    const int64_t end = part * (collective_->rank() + 1);
    bucket.gradients.narrow(0, 0, end - part).zero_();
    bucket.gradients.narrow(0, end, bucket.gradients.numel() - end).zero_();
  }
  return absl::OkStatus();
}

absl::Status ParameterBuckets::ShareMasters() {
  if (sharded_) {
    for (size_t i = 0; i < buckets_.size(); ++i) Release(i);
    return failed_;
  }
  std::vector<comm::Pending> under_way;
  for (const Bucket& bucket : buckets_) {
    under_way.push_back(collective_->StartAllGather(OwnPart(bucket.masters), bucket.masters));
  }
  return WaitForAll(under_way);
}

void ParameterBuckets::Load(size_t parameter, const at::Tensor& whole) {
  const at::NoGradGuard no_grad;
  const at::Tensor values = whole.view(-1);
  if (!sharded_) {
    (*parameters_)[parameter].master.detach().view(-1).copy_(values);
    return;
  }
  Release(bucket_of_[parameter]);
  const std::vector<at::Tensor> own = OwnMasters();
  for (size_t s = 0; s < own.size(); ++s) {
    const Slice& slice = own_slices()[s];
    if (slice.parameter != parameter) continue;
    own[s].copy_(values.narrow(0, slice.begin, slice.num_elements));
  }
}

absl::StatusOr<at::Tensor> ParameterBuckets::Collect(size_t parameter,
                                                     const std::vector<at::Tensor>& own,
                                                     at::ScalarType dtype) const {
  if (collective_ == nullptr) return own.front().cpu();
  at::Tensor whole;
  if (rank() == 0) whole = at::empty({(*parameters_)[parameter].master.numel()}, dtype);
  size_t next = 0;  // in `own`
  for (size_t owner = 0; owner < slices_.size(); ++owner) {
    for (const Slice& slice : slices_[owner]) {
      if (slice.parameter != parameter) continue;
      at::Tensor sent =
          owner == rank() ? own[next++].cpu() : at::empty({slice.num_elements}, dtype);
      if (owner != 0) TANDEM_RETURN_IF_ERROR(values_->Broadcast(sent, static_cast<int>(owner)));
      if (rank() == 0) whole.narrow(0, slice.begin, slice.num_elements).copy_(sent);
    }
  }
  return whole;
}

}  // namespace tandem::trainer
