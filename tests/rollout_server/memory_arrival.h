// MemoryArrival: ArrivingWeights in host memory, in place of a device; and the part of a scripted
// engine that uses it.
#pragma once

#include <algorithm>
#include <array>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/weights/digest.h"
#include "common/weights/host_tensor.h"
#include "rollout_server/engine/engine.h"
#include "rollout_server/engine/forward/staged_weights.h"

namespace tandem::rollout::testing {

// Weights as text: the bytes of each tensor, in the engine's order.
struct TextWeights : StagedWeights {
  void Add(std::span<const std::byte> bytes) {
    tensors.emplace_back(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  }
  std::vector<std::string> tensors;
};

class MemoryArrival : public ArrivingWeights {
 public:
  // Bytes that are not written are '?'. `flip_in`: a tensor in which a bit is flipped; -1: none.
  explicit MemoryArrival(const std::vector<TensorSpec>& specs, int flip_in = -1)
      : weights_(std::make_unique<TextWeights>()), flip_in_(flip_in) {
    for (const TensorSpec& spec : specs) {
      weights_->tensors.emplace_back(static_cast<size_t>(spec.num_bytes()), '?');
    }
  }

  absl::StatusOr<std::span<std::byte>> Buffer(size_t index, int64_t num_bytes) override {
    buffers_[index].resize(static_cast<size_t>(num_bytes));
    return std::span(buffers_[index]);
  }
  absl::Status Write(size_t index, int64_t offset, std::span<const std::byte> bytes) override {
    if (sealed_) return absl::FailedPreconditionError("the weights are sealed");
    std::string& tensor = weights_->tensors.at(index);
    const auto at = static_cast<size_t>(offset);
    if (at + bytes.size() > tensor.size()) {
      return absl::OutOfRangeError(absl::StrCat("past the end of tensor ", index));
    }
    std::ranges::copy(bytes, std::as_writable_bytes(std::span(tensor)).begin() + offset);
    return absl::OkStatus();
  }
  absl::StatusOr<std::vector<std::string>> Seal() override {
    sealed_ = true;
    if (flip_in_ >= 0) weights_->tensors[static_cast<size_t>(flip_in_)].back() ^= 1;
    std::vector<std::string> sums;
    for (const std::string& tensor : weights_->tensors) {
      sums.push_back(WordSumsDigest(std::as_bytes(std::span(tensor))));
    }
    return sums;
  }
  std::unique_ptr<StagedWeights> Take() override { return std::move(weights_); }

 private:
  std::unique_ptr<TextWeights> weights_;
  const int flip_in_;
  std::array<std::vector<std::byte>, kBuffers> buffers_;
  bool sealed_ = false;
};

// An Engine whose weights may arrive in its memory, which is the host's.
class EngineWithArrivals : public Engine {
 public:
  // From now on, weights of these tensors; `flip_in` as MemoryArrival has it.
  void LetWeightsArrive(std::vector<TensorSpec> tensors, int flip_in = -1) {
    tensors_ = std::move(tensors);
    flip_in_ = flip_in;
  }
  std::optional<Device> arrival_memory() const override {
    if (tensors_.empty()) return std::nullopt;
    return Device::kCpu;
  }
  absl::StatusOr<std::unique_ptr<ArrivingWeights>> Arrive() const override {
    return std::make_unique<MemoryArrival>(tensors_, flip_in_);
  }

 private:
  std::vector<TensorSpec> tensors_;  // empty: none may
  int flip_in_ = -1;
};

}  // namespace tandem::rollout::testing
