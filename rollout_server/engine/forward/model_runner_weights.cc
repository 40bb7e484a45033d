// The weights of a ModelRunner: packed from tensors, and with adapters beside them.
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "common/base/check.h"
#include "rollout_server/engine/forward/model_runner.h"

namespace tandem::rollout {

absl::StatusOr<std::unique_ptr<StagedWeights>> ModelRunner::Pack(
    const std::vector<HostTensor>& tensors, std::unique_ptr<StagedWeights> spare) const {
  const DType dtype = dtype_ == ComputeDType::kBf16 ? DType::kBF16 : DType::kF32;
  std::unique_ptr<ModelWeights> memory;
  if (dynamic_cast<ModelWeights*>(spare.get()) != nullptr) {
    memory.reset(static_cast<ModelWeights*>(spare.release()));
  }
  return PackModelWeights(config_, tensors, dtype, plan_, std::move(memory), team_.size());
}

absl::StatusOr<std::unique_ptr<StagedWeights>> ModelRunner::PackAs(
    const std::vector<HostTensor>& tensors, const QuantisationPlan& plan) const {
  TANDEM_CHECK(plan.kv == plan_.kv);
  const DType dtype = dtype_ == ComputeDType::kBf16 ? DType::kBF16 : DType::kF32;
  return PackModelWeights(config_, tensors, dtype, plan, nullptr, team_.size());
}

absl::StatusOr<std::unique_ptr<StagedWeights>> ModelRunner::Adapt(
    std::shared_ptr<const StagedWeights> base,
    std::shared_ptr<const AdapterWeights> adapter) const {
  auto adapted = std::make_unique<AdaptedWeights>();
  adapted->served_digests = base->served_digests;
  adapted->base = std::dynamic_pointer_cast<const ModelWeights>(std::move(base));
  TANDEM_CHECK(adapted->base != nullptr);
  adapted->adapter = std::move(adapter);
  return adapted;
}

bool ModelRunner::Packed(const StagedWeights* weights) const {
  return dynamic_cast<const ModelWeights*>(weights) != nullptr ||
         dynamic_cast<const AdaptedWeights*>(weights) != nullptr;
}

// Which adapter each row of the step has.
void ModelRunner::PrepareAdapters(const AdapterWeights* of_weights,
                                  std::span<const TokenInput> inputs,
                                  std::span<const int64_t> logits_rows) {
  const auto of = [&](int64_t row) {
    const AdapterWeights* const own = inputs[static_cast<size_t>(row)].adapter;
    return own != nullptr ? own : of_weights;
  };
  adapters_.Begin(std::ssize(inputs), of);
  head_adapters_.Begin(std::ssize(logits_rows),
                       [&](int64_t i) { return of(logits_rows[static_cast<size_t>(i)]); });
  attended_.Collect(adapters_.any());
  activated_.Collect(adapters_.any());
}

}  // namespace tandem::rollout
