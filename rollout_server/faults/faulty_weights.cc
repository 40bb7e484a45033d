#include "rollout_server/faults/faulty_weights.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "common/base/check.h"
#include "common/tensor/bf16_rounding.h"

namespace tandem::rollout {
namespace {

HostTensor Owned(const TensorSpec& spec, std::vector<std::byte> bytes) {
  auto owner = std::make_shared<std::vector<std::byte>>(std::move(bytes));
  const std::span<const std::byte> view(*owner);
  return {spec, view, std::move(owner)};
}

template <typename T>
float Element(const HostTensor& tensor, int64_t i) {
  T value;
  std::memcpy(&value, tensor.bytes.data() + i * static_cast<int64_t>(sizeof(T)), sizeof(T));
  if constexpr (sizeof(T) == 4) {
    return value;
  } else {
    return Bf16ToFloat(value);
  }
}

template <typename T>
HostTensor Blend(const HostTensor& x, const HostTensor& y, double a) {
  std::vector<std::byte> bytes(x.bytes.size());
  for (int64_t i = 0; i < x.spec.num_elements(); ++i) {
    const auto blend =
        static_cast<float>((1 - a) * double{Element<T>(x, i)} + a * double{Element<T>(y, i)});
    if constexpr (sizeof(T) == 4) {
      std::memcpy(bytes.data() + i * 4, &blend, 4);
    } else {
      const uint16_t rounded = NearestBf16(blend);
      std::memcpy(bytes.data() + i * 2, &rounded, 2);
    }
  }
  return Owned(x.spec, std::move(bytes));
}

}  // namespace

HostTensor BlendTensors(const HostTensor& x, const HostTensor& y, double a) {
  return x.spec.dtype == DType::kBF16 ? Blend<uint16_t>(x, y, a) : Blend<float>(x, y, a);
}

std::vector<HostTensor> CopyTensors(const std::vector<HostTensor>& tensors) {
  std::vector<HostTensor> copies;
  for (const HostTensor& tensor : tensors) {
    copies.push_back(Owned(tensor.spec, {tensor.bytes.begin(), tensor.bytes.end()}));
  }
  return copies;
}

FaultyWeights::FaultyWeights(const ModelConfig& config, const QuantisationPlan& plan,
                             const EngineFaults& faults, std::vector<HostTensor> first)
    : config_(config),
      plan_(*ServedPlan(faults, config, plan)),
      faults_(faults),
      dtype_(first.at(0).spec.dtype),
      first_(std::move(first)) {
  history_.push_back(first_);
  Pack();
}

void FaultyWeights::Install(std::vector<HostTensor> tensors) {
  history_.push_back(std::move(tensors));
  // The live one, those it lags behind, and the one before.
  while (static_cast<int64_t>(history_.size()) > faults_.stale_versions + 2) history_.pop_front();
  Pack();
}

void FaultyWeights::Pack() {
  if (faults_.stale_prefix_fraction > 0) before_ = std::move(served_);
  auto packed = PackModelWeights(config_, ServedTensors(), dtype_, plan_, std::move(served_));
  TANDEM_CHECK(packed.ok());  // Stage packed the same names and shapes
  served_ = *std::move(packed);
}

// A tensor as it was that many installs before the live one, or first.
const HostTensor& FaultyWeights::Back(size_t tensor, int64_t num_installs) const {
  const int64_t newest = static_cast<int64_t>(history_.size()) - 1;
  return history_[static_cast<size_t>(std::max<int64_t>(0, newest - num_installs))][tensor];
}

std::vector<HostTensor> FaultyWeights::ServedTensors() const {
  std::vector<HostTensor> served;
  const double a = faults_.weight_interpolation;
  for (size_t i = 0; i < first_.size(); ++i) {
    const std::string& name = first_[i].spec.name;
    if (name == faults_.undelivered_tensor) {
      served.push_back(first_[i]);
    } else if (!faults_.tensor.empty() && name != faults_.tensor) {
      served.push_back(Back(i, 0));
    } else if (a == 0) {
      served.push_back(Back(i, faults_.stale_versions));
    } else {
      served.push_back(
          BlendTensors(Back(i, faults_.stale_versions), Back(i, faults_.stale_versions + 1), a));
    }
  }
  return served;
}

}  // namespace tandem::rollout
