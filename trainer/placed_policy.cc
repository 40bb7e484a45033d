#include "trainer/placed_policy.h"

#include <cstring>
#include <map>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/status_macros.h"
#include "common/tensor/host_tensor_conversion.h"

namespace tandem::trainer {
namespace {

HostTensor View(const std::string& name, const at::Tensor& values) {
  const auto* bytes = static_cast<const std::byte*>(values.const_data_ptr());
  return {.spec = {name, DType::kF32, values.sizes().vec()},
          .bytes = {bytes, values.nbytes()},
          .owner = std::make_shared<at::Tensor>(values)};
}

}  // namespace

PlacedPolicy::PlacedPolicy(std::unique_ptr<Policy> policy, comm::Collective* group,
                           const BucketOptions& options)
    : policy_(std::move(policy)),
      buckets_(&policy_->parameters(), policy_->stages(), group, options) {
  policy_->Watch({[this](Pass pass, size_t stage) { buckets_.BeginStage(pass, stage); },
                  [this](Pass pass, size_t stage) { buckets_.EndStage(pass, stage); },
                  buckets_.sharded()});
}

absl::StatusOr<std::unique_ptr<PlacedPolicy>> PlacedPolicy::Create(
    const ModelConfig& config, ComputeDType dtype, bool trainable, Numerics numerics,
    comm::Collective* group, const BucketOptions& options) {
  TANDEM_ASSIGN_OR_RETURN(std::unique_ptr<Policy> policy,
                          Policy::CreateUnfilled(config, dtype, trainable, numerics));
  return std::unique_ptr<PlacedPolicy>(new PlacedPolicy(std::move(policy), group, options));
}

absl::StatusOr<TokenScores> PlacedPolicy::Score(const PackedRow& row, double temperature,
                                                bool with_gradient) {
  absl::StatusOr<TokenScores> scores = policy_->Score(row, temperature, with_gradient);
  if (!buckets_.failure().ok()) return buckets_.failure();
  return scores;
}

absl::Status PlacedPolicy::Accompany(Pass pass) {
  if (buckets_.sharded()) policy_->Accompany(pass);
  return buckets_.failure();
}

absl::Status PlacedPolicy::Fill(std::span<const TensorSource> tensors) {
  TANDEM_CHECK(tensors.size() == policy_->parameters().size());
  for (size_t i = 0; i < tensors.size(); ++i) {
    TANDEM_ASSIGN_OR_RETURN(const HostTensor tensor, tensors[i].read());
    TANDEM_ASSIGN_OR_RETURN(const at::Tensor whole, AsMaster(tensor));
    TANDEM_CHECK(whole.numel() == policy_->parameters()[i].master.numel());
    buckets_.Load(i, whole.const_data_ptr<float>());
  }
  policy_->WeightsChanged();
  return absl::OkStatus();
}

absl::Status PlacedPolicy::Restore(std::span<const TensorSource> saved) {
  std::map<std::string, const TensorSource*> by_name;
  for (const TensorSource& source : saved) by_name[source.spec.name] = &source;
  std::vector<TensorSource> in_order;
  for (const TensorSpec& spec : ModelTensors(policy_->config(), DType::kF32)) {
    const auto found = by_name.find(spec.name);
    if (found == by_name.end()) {
      return absl::InvalidArgumentError(absl::StrCat("saved master ", spec.name, " is missing"));
    }
    const TensorSource& source = *found->second;
    if (source.spec != spec) {
      return absl::InvalidArgumentError(absl::StrCat("saved master ", source.spec.ToString(),
                                                     " must be ", spec.ToString()));
    }
    in_order.push_back(source);
  }
  return Fill(in_order);
}

absl::Status PlacedPolicy::FillOwn(std::span<const HostTensor> own) {
  const std::vector<at::Tensor> masters = buckets_.OwnMasters();
  TANDEM_CHECK(own.size() == masters.size());
  for (size_t i = 0; i < own.size(); ++i) {
    TANDEM_CHECK(own[i].bytes.size() == masters[i].nbytes());
    std::memcpy(masters[i].data_ptr(), own[i].bytes.data(), own[i].bytes.size());
  }
  policy_->WeightsChanged();
  return buckets_.ShareMasters();
}

std::vector<TensorPart> PlacedPolicy::OwnMasters() const {
  const std::vector<at::Tensor> masters = buckets_.OwnMasters();
  std::vector<TensorPart> parts;
  for (size_t i = 0; i < masters.size(); ++i) {
    const Slice& slice = buckets_.own_slices()[i];
    parts.push_back({View(policy_->parameters()[slice.parameter].name, masters[i]), slice.begin});
  }
  return parts;
}

std::vector<TensorPart> PlacedPolicy::HeldMasters() const {
  if (buckets_.sharded()) return OwnMasters();
  std::vector<TensorPart> parts;
  for (const NamedParameter& parameter : policy_->parameters()) {
    parts.push_back({View(parameter.name, parameter.master.detach()), 0});
  }
  return parts;
}

std::vector<TensorSource> PlacedPolicy::Gathered(std::vector<HostTensor> own,
                                                 DType dtype) const {
  const auto slices = std::make_shared<const std::vector<HostTensor>>(std::move(own));
  std::vector<TensorSource> sources;
  for (size_t i = 0; i < policy_->parameters().size(); ++i) {
    const NamedParameter& parameter = policy_->parameters()[i];
    const TensorSpec spec = {parameter.name, dtype, parameter.master.sizes().vec()};
    sources.push_back({spec, [this, slices, i, spec]() -> absl::StatusOr<HostTensor> {
      std::vector<at::Tensor> of_parameter;
      for (size_t s = 0; s < slices->size(); ++s) {
        if (buckets_.own_slices()[s].parameter != i) continue;
        TANDEM_ASSIGN_OR_RETURN(of_parameter.emplace_back(), ViewAsTensor((*slices)[s]));
      }
      const auto type = spec.dtype == DType::kF32 ? at::kFloat : at::kBFloat16;
      TANDEM_ASSIGN_OR_RETURN(const at::Tensor whole, buckets_.Collect(i, of_parameter, type));
      if (!whole.defined()) return HostTensor{spec, {}, nullptr};
      HostTensor tensor = View(spec.name, whole.contiguous());
      tensor.spec = spec;
      return tensor;
    }});
  }
  return sources;
}

}  // namespace tandem::trainer
