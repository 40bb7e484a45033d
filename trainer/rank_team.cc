#include "trainer/rank_team.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <cstring>

#include "common/base/status_macros.h"

namespace tandem::trainer {
namespace {

constexpr int64_t kBucketElements = 25'000'000 / 4;

// Parameters of one bucket: [begin, end).
struct Bucket {
  size_t begin = 0, end = 0;
  int64_t num_elements = 0;
};

// In the order of the parameters; a parameter larger than a bucket has one of its own.
std::vector<Bucket> CutBuckets(const std::vector<NamedParameter>& parameters) {
  std::vector<Bucket> buckets;
  for (size_t i = 0; i < parameters.size(); ++i) {
    const int64_t count = parameters[i].master.numel();
    if (buckets.empty() || buckets.back().num_elements + count > kBucketElements) {
      buckets.push_back({.begin = i, .end = i});
    }
    buckets.back().end = i + 1;
    buckets.back().num_elements += count;
  }
  return buckets;
}

at::Tensor& GradientOf(const NamedParameter& parameter) {
  at::Tensor& gradient = parameter.master.mutable_grad();
  if (!gradient.defined()) gradient = at::zeros(parameter.master.sizes());
  return gradient;
}

// Gradients of the bucket, one after the other, to `flat` or from it.
void Copy(const std::vector<NamedParameter>& parameters, const Bucket& bucket, at::Tensor& flat,
          bool to_flat) {
  float* at = flat.data_ptr<float>();
  for (size_t i = bucket.begin; i < bucket.end; ++i) {
    at::Tensor& gradient = GradientOf(parameters[i]);
    auto* const values = gradient.data_ptr<float>();
    std::memcpy(to_flat ? at : values, to_flat ? values : at, gradient.nbytes());
    at += gradient.numel();
  }
}

}  // namespace

absl::Status RankTeam::ShareRows(std::span<const int64_t> lengths, std::span<at::Tensor> rows) {
  if (alone()) return absl::OkStatus();
  int64_t total = 0;
  for (const int64_t length : lengths) total += length;
  at::Tensor all = at::zeros({total});
  int64_t at = 0;
  for (size_t i = 0; i < rows.size(); at += lengths[i++]) {
    if (rows[i].defined()) all.narrow(0, at, lengths[i]).copy_(rows[i]);
  }
  TANDEM_RETURN_IF_ERROR(group_->AllReduce(all));
  at = 0;
  for (size_t i = 0; i < rows.size(); at += lengths[i++]) {
    // Own rows stay the tensors they are: what is added to them elsewhere are zeros.
    if (!rows[i].defined()) rows[i] = all.narrow(0, at, lengths[i]).clone();
  }
  return absl::OkStatus();
}

absl::Status RankTeam::Reduce(std::span<double> values, comm::Reduction reduction) {
  if (alone()) return absl::OkStatus();
  at::Tensor all = at::empty({static_cast<int64_t>(values.size())}, at::kDouble);
  std::memcpy(all.data_ptr<double>(), values.data(), values.size_bytes());
  TANDEM_RETURN_IF_ERROR(group_->AllReduce(all, reduction));
  std::memcpy(values.data(), all.const_data_ptr<double>(), values.size_bytes());
  return absl::OkStatus();
}

absl::Status RankTeam::Sum(std::span<double> values) {
  return Reduce(values, comm::Reduction::kSum);
}

absl::Status RankTeam::Max(std::span<double> values) {
  return Reduce(values, comm::Reduction::kMax);
}

absl::Status RankTeam::SumGradients(const std::vector<NamedParameter>& parameters) {
  if (alone()) return absl::OkStatus();
  const std::vector<Bucket> cuts = CutBuckets(parameters);
  std::vector<comm::Pending> pending;
  for (size_t i = 0; i < cuts.size(); ++i) {
    if (i == buckets_.size()) buckets_.push_back(at::empty({cuts[i].num_elements}));
    Copy(parameters, cuts[i], buckets_[i], /*to_flat=*/true);
    pending.push_back(group_->StartAllReduce(buckets_[i]));
  }
  // All are waited for, also after one failed: the buckets are theirs until then.
  absl::Status first = absl::OkStatus();
  for (size_t i = 0; i < cuts.size(); ++i) {
    const absl::Status waited = pending[i].Wait();
    if (waited.ok()) Copy(parameters, cuts[i], buckets_[i], /*to_flat=*/false);
    first.Update(waited);
  }
  return first;
}

}  // namespace tandem::trainer
