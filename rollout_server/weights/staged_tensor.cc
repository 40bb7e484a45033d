#include "rollout_server/weights/staged_tensor.h"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <utility>

#include "common/base/status_macros.h"

namespace tandem::rollout {
namespace {

std::shared_ptr<TensorMemory> NewMemory(const TensorSpec& spec) {
  return std::make_unique_for_overwrite<std::byte[]>(static_cast<size_t>(spec.num_bytes()));
}

// Adds [begin, end) to disjoint ranges, and joins those that it touches. Returns by how many bytes
// the ranges grew.
int64_t AddRange(std::map<int64_t, int64_t>* ranges, int64_t begin, int64_t end) {
  auto next = ranges->upper_bound(begin);
  if (next != ranges->begin()) {
    const auto before = std::prev(next);
    if (before->second >= begin) next = before;
  }
  int64_t had = 0;
  while (next != ranges->end() && next->first <= end) {
    begin = std::min(begin, next->first);
    end = std::max(end, next->second);
    had += next->second - next->first;
    next = ranges->erase(next);
  }
  ranges->emplace(begin, end);
  return end - begin - had;
}

}  // namespace

std::shared_ptr<TensorMemory> TakenMemory(const TensorSpec& spec) {
  std::shared_ptr<TensorMemory> memory = NewMemory(spec);
  std::memset(memory.get(), 0, static_cast<size_t>(spec.num_bytes()));
  return memory;
}

StagedTensor StagedTensor::Dense(const TensorSpec* spec, std::shared_ptr<TensorMemory> memory) {
  StagedTensor tensor(spec, {TensorEncoding::kDense, spec->num_bytes()});
  // Somebody still reads it (the engine may keep what it was given), so use fresh memory.
  const bool is_ours = memory != nullptr && memory.use_count() == 1;
  tensor.memory_ = is_ours ? std::move(memory) : NewMemory(*spec);
  return tensor;
}

StagedTensor StagedTensor::OverLive(const TensorSpec* spec, const WireForm& form,
                                    std::shared_ptr<TensorMemory> live) {
  StagedTensor tensor(spec, form);
  tensor.over_live_ = true;
  if (form.encoding == TensorEncoding::kDense) {
    tensor.memory_ = NewMemory(*spec);
    tensor.live_ = std::move(live);
  } else {
    tensor.memory_ = std::move(live);
    tensor.delta_.resize(static_cast<size_t>(form.num_bytes));
  }
  return tensor;
}

absl::Status StagedTensor::Store(int64_t offset, std::span<const std::byte> data) {
  const auto length = static_cast<int64_t>(data.size());
  if (offset < 0 || offset > form_.num_bytes || length > form_.num_bytes - offset) {
    return OutOfRange("a chunk of ", length, " bytes at ", offset, " ends past the ",
                      form_.num_bytes, " bytes of ", spec_->name);
  }
  if (data.empty() || complete()) return absl::OkStatus();
  std::memcpy((is_dense() ? memory_.get() : delta_.data()) + offset, data.data(), data.size());
  arrived_bytes_ += AddRange(&arrived_, offset, offset + length);
  return absl::OkStatus();
}

absl::Status StagedTensor::Finish() {
  if (!complete()) {
    return DataLoss(form_.num_bytes - arrived_bytes_, " of ", form_.num_bytes, " bytes of ",
                    spec_->name, " did not arrive");
  }
  if (is_dense() || added_) return absl::OkStatus();
  TANDEM_RETURN_IF_ERROR(CheckDelta(form_.encoding, *spec_, delta_));
  if (memory_.use_count() > 1) {
    live_ = std::move(memory_);
    memory_ = NewMemory(*spec_);
    std::memcpy(memory_.get(), live_.get(), static_cast<size_t>(spec_->num_bytes()));
  }
  AddDelta(form_.encoding, *spec_, delta_,
           {memory_.get(), static_cast<size_t>(spec_->num_bytes())});
  added_ = true;
  return absl::OkStatus();
}

std::span<const std::byte> StagedTensor::bytes() const {
  return {memory_.get(), static_cast<size_t>(spec_->num_bytes())};
}

std::shared_ptr<TensorMemory> StagedTensor::Undo() && {
  if (!over_live_) return nullptr;
  if (live_ != nullptr) return std::move(live_);
  if (added_) {
    SubtractDelta(form_.encoding, *spec_, delta_,
                  {memory_.get(), static_cast<size_t>(spec_->num_bytes())});
  }
  return std::move(memory_);
}

}  // namespace tandem::rollout
