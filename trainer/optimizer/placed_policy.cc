#include "trainer/optimizer/placed_policy.h"

#include <ATen/ops/sub.h>

#include <algorithm>
#include <map>
#include <string>
#include <utility>

#include "common/base/check.h"
#include "common/base/status_macros.h"
#include "common/lora/lora_change.h"
#include "common/lora/lora_merge.h"
#include "common/tensor/host_tensor_conversion.h"
#include "common/tensor/torch_status.h"
#include "trainer/policy/tensor_memory.h"

namespace tandem::trainer {

PlacedPolicy::PlacedPolicy(std::unique_ptr<Policy> policy, const PlacedPolicyOptions& options)
    : policy_(std::move(policy)),
      lora_seed_(options.lora_seed),
      lora_start_(options.lora_start),
      buckets_(&policy_->parameters(), policy_->stages(), options.collectives, options.buckets) {
  policy_->Watch({[this](Pass pass, size_t stage) { buckets_.BeginStage(pass, stage); },
                  [this](Pass pass, size_t stage) { buckets_.EndStage(pass, stage); },
                  buckets_.sharded()});
}

absl::StatusOr<std::unique_ptr<PlacedPolicy>> PlacedPolicy::Create(
    const ModelConfig& config, const PlacedPolicyOptions& options) {
  TANDEM_ASSIGN_OR_RETURN(const QuantisationPlan plan,
                          MakeQuantisationPlan(config, options.fake_quantise));
  TANDEM_ASSIGN_OR_RETURN(
      std::unique_ptr<Policy> policy,
      Policy::CreateUnfilled(config, options.dtype, options.trainable, options.numerics,
                             options.device, {plan, options.lora}));
  return CatchTorch("memory of parameters", [&] {
    return std::unique_ptr<PlacedPolicy>(new PlacedPolicy(std::move(policy), options));
  });
}

absl::StatusOr<TokenScores> PlacedPolicy::Run(const PackedRow& row, const PassOptions& options) {
  absl::StatusOr<TokenScores> scores = policy_->Run(row, options);
  if (!buckets_.failure().ok()) return buckets_.failure();
  return scores;
}

absl::Status PlacedPolicy::RunEmptyPass(Pass pass) {
  if (buckets_.sharded()) {
    TANDEM_RETURN_IF_ERROR(CatchTorch("pass without a row", [&] { policy_->RunEmptyPass(pass); }));
  }
  return buckets_.failure();
}

absl::Status PlacedPolicy::Fill(std::span<const TensorSource> tensors) {
  const PolicyAdapters& adapters = policy_->adapters();
  if (!adapters.enabled()) return FillParameters(tensors);
  TANDEM_RETURN_IF_ERROR(FillBase(tensors));
  if (!lora_start_.empty()) return FillParameters(PresentAll(lora_start_));
  std::vector<TensorSource> initial;
  std::vector<at::Tensor> values = InitialAdapters(adapters, lora_seed_);
  for (size_t i = 0; i < values.size(); ++i) {
    TANDEM_ASSIGN_OR_RETURN(HostTensor tensor,
                            ToHostTensor(adapters.parameters()[i].name, values[i]));
    initial.push_back(Present(std::move(tensor)));
  }
  return FillParameters(initial);
}

absl::Status PlacedPolicy::FillBase(std::span<const TensorSource> tensors) {
  const std::vector<NamedParameter>& base = policy_->base();
  TANDEM_CHECK(tensors.size() == base.size());
  for (size_t i = 0; i < tensors.size(); ++i) {
    TANDEM_ASSIGN_OR_RETURN(const HostTensor tensor, tensors[i].read());
    TANDEM_ASSIGN_OR_RETURN(const at::Tensor whole, AsMaster(tensor));
    TANDEM_CHECK(whole.sizes() == base[i].master.sizes());
    TANDEM_RETURN_IF_ERROR(CatchTorch("the base's weights", [&] {
      SetStored(base[i].master, true);
      base[i].master.copy_(whole);
    }));
  }
  policy_->BaseChanged();
  return absl::OkStatus();
}

absl::Status PlacedPolicy::FillParameters(std::span<const TensorSource> tensors) {
  TANDEM_CHECK(tensors.size() == policy_->parameters().size());
  for (size_t i = 0; i < tensors.size(); ++i) {
    TANDEM_ASSIGN_OR_RETURN(const HostTensor tensor, tensors[i].read());
    TANDEM_ASSIGN_OR_RETURN(const at::Tensor whole, AsMaster(tensor));
    TANDEM_CHECK(whole.numel() == policy_->parameters()[i].master.numel());
    TANDEM_RETURN_IF_ERROR(CatchTorch("masters", [&] { buckets_.Load(i, whole); }));
  }
  policy_->WeightsChanged();
  return absl::OkStatus();
}

absl::Status PlacedPolicy::Restore(std::span<const TensorSource> saved) {
  std::map<std::string, const TensorSource*> by_name;
  for (const TensorSource& source : saved) by_name[source.spec.name] = &source;
  std::vector<TensorSource> in_order;
  for (const NamedParameter& parameter : policy_->parameters()) {
    const TensorSpec spec = {parameter.name, DType::kF32, parameter.master.sizes().vec()};
    const auto found = by_name.find(spec.name);
    if (found == by_name.end()) {
      return InvalidArgument("saved master ", spec.name, " is missing",
                             policy_->adapters().enabled()
                                 ? ": it was saved without trainer.lora, or with other targets"
                                 : ": it was saved with trainer.lora, perhaps");
    }
    const TensorSource& source = *found->second;
    if (source.spec != spec) {
      return InvalidArgument("saved master ", source.spec.ToString(), " must be ", spec.ToString());
    }
    in_order.push_back(source);
  }
  return FillParameters(in_order);
}

absl::StatusOr<std::vector<at::Tensor>> PlacedPolicy::WholeMasters() {
  const std::vector<NamedParameter>& parameters = policy_->parameters();
  std::vector<at::Tensor> whole(parameters.size());
  TANDEM_RETURN_IF_ERROR(CatchTorch("gathering adapters", [&] {
    for (size_t stage = policy_->stages().size(); stage-- > 0;) {
      buckets_.BeginStage(Pass::kForward, stage);
      for (const size_t i : policy_->stages()[stage]) {
        const at::Tensor master = parameters[i].master.detach();
        whole[i] = buckets_.sharded() ? master.clone() : master;
      }
      buckets_.EndStage(Pass::kForward, stage);
    }
  }));
  TANDEM_RETURN_IF_ERROR(buckets_.failure());
  return whole;
}

absl::StatusOr<std::vector<TensorPart>> PlacedPolicy::MergedMasters(
    DType dtype, std::span<const HostTensor> own) {
  if (!own.empty()) {
    TANDEM_ASSIGN_OR_RETURN(const std::vector<TensorPart> live, CopyOwnMasters());
    TANDEM_RETURN_IF_ERROR(FillOwn(own));
    auto merged = MergedMasters(dtype);
    TANDEM_RETURN_IF_ERROR(FillOwn(ValuesOf(live)));
    return merged;
  }
  TANDEM_ASSIGN_OR_RETURN(const HeldAdapters held, Adapters());
  std::vector<TensorPart> parts;
  for (const TensorSource& source : MergedSources(held.tensors, dtype)) {
    TANDEM_ASSIGN_OR_RETURN(HostTensor merged, source.read());
    parts.push_back({std::move(merged), 0});
  }
  return parts;
}

std::vector<TensorSource> PlacedPolicy::MergedSources(const std::vector<HostTensor>& adapters,
                                                      DType dtype) const {
  TANDEM_CHECK(policy_->adapters().enabled());
  std::vector<TensorSource> sources;
  for (const NamedParameter& parameter : policy_->base()) {
    const auto read = [this, &parameter, adapters, dtype]() -> absl::StatusOr<HostTensor> {
      const PolicyAdapters& of = policy_->adapters();
      const auto module = of.Find(parameter.name);
      at::Tensor a, b;
      if (module) {
        TANDEM_ASSIGN_OR_RETURN(a, AsMaster(adapters[2 * *module]));
        TANDEM_ASSIGN_OR_RETURN(b, AsMaster(adapters[2 * *module + 1]));
      }
      return CatchTorch("merging adapters", [&] {
        at::Tensor base = parameter.master.detach().cpu();
        if (dtype == DType::kBF16) base = base.to(at::kBFloat16).to(at::kFloat);
        return ToHostTensor(parameter.name, module ? of.Merged(*module, a, b, base) : base);
      });
    };
    sources.push_back({{parameter.name, DType::kF32, parameter.master.sizes().vec()}, read});
  }
  return sources;
}

absl::StatusOr<HeldAdapters> PlacedPolicy::Adapters(const HeldAdapters* before) {
  const PolicyAdapters& adapters = policy_->adapters();
  TANDEM_ASSIGN_OR_RETURN(const std::vector<at::Tensor> whole, WholeMasters());
  HeldAdapters held = {.modules = adapters.modules()};
  for (size_t i = 0; i < whole.size(); ++i) {
    TANDEM_ASSIGN_OR_RETURN(held.tensors.emplace_back(),
                            ToHostTensor(policy_->parameters()[i].name,
                                         whole[i].is_cpu() ? whole[i].clone() : whole[i].cpu()));
  }
  const auto factors = [&](const std::vector<HostTensor>& tensors, size_t m) {
    return LoraFactors{reinterpret_cast<const float*>(tensors[2 * m].bytes.data()),
                       reinterpret_cast<const float*>(tensors[2 * m + 1].bytes.data()),
                       adapters.options().rank, held.modules[m].in, adapters.options().scaling()};
  };
  for (size_t m = 0; m < held.modules.size(); ++m) {
    const LoraFactors now = factors(held.tensors, m);
    const int64_t out = held.modules[m].out;
    held.changes.push_back(ChangeProduct(now, now, out));
    if (before == nullptr) continue;
    const double common = ChangeProduct(now, factors(before->tensors, m), out);
    held.moves.push_back(std::max(0.0, held.changes[m] - 2 * common + before->changes[m]));
  }
  return held;
}

absl::Status PlacedPolicy::FillOwn(std::span<const HostTensor> own) {
  const std::vector<at::Tensor> masters = buckets_.OwnMasters();
  TANDEM_CHECK(own.size() == masters.size());
  for (size_t i = 0; i < own.size(); ++i) {
    TANDEM_CHECK(own[i].bytes.size() == masters[i].nbytes());
    TANDEM_ASSIGN_OR_RETURN(const at::Tensor values, ViewAsTensor(own[i]));
    TANDEM_RETURN_IF_ERROR(CatchTorch("masters", [&] { masters[i].copy_(values.view(-1)); }));
  }
  policy_->WeightsChanged();
  return buckets_.ShareMasters();
}

absl::StatusOr<std::vector<TensorPart>> PlacedPolicy::PartsOf(
    const std::vector<at::Tensor>& slices) const {
  std::vector<TensorPart> parts;
  for (size_t i = 0; i < slices.size(); ++i) {
    const Slice& slice = buckets_.own_slices()[i];
    TANDEM_ASSIGN_OR_RETURN(HostTensor values,
                            ToHostTensor(policy_->parameters()[slice.parameter].name, slices[i]));
    parts.push_back({std::move(values), slice.begin});
  }
  return parts;
}

absl::StatusOr<std::vector<TensorPart>> PlacedPolicy::OwnMasters() const {
  return PartsOf(buckets_.OwnMasters());
}

absl::StatusOr<std::vector<TensorPart>> PlacedPolicy::HeldMasters() const {
  if (buckets_.sharded()) return OwnMasters();
  std::vector<TensorPart> parts;
  for (const NamedParameter& parameter : policy_->parameters()) {
    TANDEM_ASSIGN_OR_RETURN(HostTensor whole, ToHostTensor(parameter.name, parameter.master));
    parts.push_back({std::move(whole), 0});
  }
  return parts;
}

absl::StatusOr<std::vector<TensorPart>> PlacedPolicy::CopyOwnMasters() const {
  std::vector<at::Tensor> masters = buckets_.OwnMasters();
  for (at::Tensor& master : masters) {
    if (master.is_cpu()) master = master.clone();
  }
  return PartsOf(masters);
}

template <typename Read>
std::vector<TensorSource> PlacedPolicy::Sources(DType dtype, const Read& read) const {
  std::vector<TensorSource> sources;
  for (size_t i = 0; i < policy_->parameters().size(); ++i) {
    const NamedParameter& parameter = policy_->parameters()[i];
    const TensorSpec spec = {parameter.name, dtype, parameter.master.sizes().vec()};
    sources.push_back({spec, [read, i, spec] { return read(i, spec); }});
  }
  return sources;
}

std::vector<TensorSource> PlacedPolicy::Masters() const {
  return Sources(DType::kF32,
                 [this](size_t i, const TensorSpec& spec) -> absl::StatusOr<HostTensor> {
                   if (!buckets_.sharded())
                     return ToHostTensor(spec.name, policy_->parameters()[i].master);
                   std::vector<at::Tensor> own;
                   const std::vector<at::Tensor> all = buckets_.OwnMasters();
                   for (size_t s = 0; s < all.size(); ++s) {
                     if (buckets_.own_slices()[s].parameter == i) own.push_back(all[s]);
                   }
                   return Collect(i, spec, own);
                 });
}

absl::StatusOr<double> PlacedPolicy::SquaredDistance(std::span<const HostTensor> tensors) const {
  if (tensors.size() != policy_->parameters().size()) {
    return InvalidArgument(tensors.size(), " tensors, the policy has ",
                           policy_->parameters().size());
  }
  const std::vector<at::Tensor> own = buckets_.OwnMasters();
  double squares = 0;
  for (size_t i = 0; i < own.size(); ++i) {
    const Slice& slice = buckets_.own_slices()[i];
    TANDEM_ASSIGN_OR_RETURN(const at::Tensor other, AsMaster(tensors[slice.parameter]));
    TANDEM_RETURN_IF_ERROR(CatchTorch("distance of weights", [&] {
      const at::Tensor step =
          at::sub(own[i].cpu(), other.view(-1).narrow(0, slice.begin, slice.num_elements));
      squares += step.square().sum(at::kDouble).item<double>();
    }));
  }
  return squares;
}

std::vector<TensorSource> PlacedPolicy::Gathered(std::vector<HostTensor> own, DType dtype) const {
  const auto slices = std::make_shared<const std::vector<HostTensor>>(std::move(own));
  return Sources(
      dtype, [this, slices](size_t i, const TensorSpec& spec) -> absl::StatusOr<HostTensor> {
        std::vector<at::Tensor> of_parameter;
        for (size_t s = 0; s < slices->size(); ++s) {
          if (buckets_.own_slices()[s].parameter != i) continue;
          TANDEM_ASSIGN_OR_RETURN(of_parameter.emplace_back(), ViewAsTensor((*slices)[s]));
        }
        return Collect(i, spec, of_parameter);
      });
}

absl::StatusOr<HostTensor> PlacedPolicy::Collect(size_t parameter, const TensorSpec& spec,
                                                 const std::vector<at::Tensor>& own) const {
  TANDEM_ASSIGN_OR_RETURN(const at::ScalarType type, ToScalarType(spec.dtype));
  TANDEM_ASSIGN_OR_RETURN(const at::Tensor whole, buckets_.Collect(parameter, own, type));
  if (!whole.defined()) return HostTensor{spec, {}, nullptr};
  TANDEM_ASSIGN_OR_RETURN(HostTensor tensor, ToHostTensor(spec.name, whole));
  tensor.spec = spec;
  return tensor;
}

absl::StatusOr<std::unique_ptr<AdamW>> MakeOptimizer(PlacedPolicy& model,
                                                     const OptimizerOptions& options) {
  const ParameterBuckets& parts = model.buckets();
  OwnSlices own = {.slices = parts.own_slices()};
  if (parts.sharded()) {
    own.apart = true;
    own.masters = parts.OwnMasters();
    own.gradients = parts.OwnGradients();
  }
  return CatchTorch("moments of the optimizer", [&] {
    return std::make_unique<AdamW>(&model.policy().parameters(), options, std::move(own));
  });
}

}  // namespace tandem::trainer
