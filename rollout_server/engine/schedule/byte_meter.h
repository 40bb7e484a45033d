// ByteMeter and ByteCharge: how many bytes of memory a set of objects holds. A charge is a member
// of the object that it counts, so the meter is right wherever the object is kept and however it
// ends. Used for a server's groups: their requests, the records of their tokens, and results that
// callers have not fetched or may fetch again.
//
// ByteMeter is thread-safe. ByteCharge is thread-compatible.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <utility>

namespace tandem::rollout {

class ByteMeter {
 public:
  // `whole`, unless null, counts everything that this meter counts.
  explicit ByteMeter(std::shared_ptr<ByteMeter> whole = nullptr) : whole_(std::move(whole)) {}

  int64_t used() const { return used_.load(std::memory_order_relaxed); }

  void Add(int64_t num_bytes) {
    used_.fetch_add(num_bytes, std::memory_order_relaxed);
    if (whole_ != nullptr) whole_->Add(num_bytes);
  }

 private:
  const std::shared_ptr<ByteMeter> whole_;
  std::atomic<int64_t> used_{0};
};

// Bytes on a meter for as long as this lives. A copy of it (of its object) counts again. Without a
// meter it counts nothing.
class ByteCharge {
 public:
  ByteCharge() = default;
  explicit ByteCharge(std::shared_ptr<ByteMeter> meter, int64_t num_bytes = 0)
      : meter_(std::move(meter)) {
    Add(num_bytes);
  }
  ~ByteCharge() { Add(-num_bytes_); }
  ByteCharge(const ByteCharge& other) : ByteCharge(other.meter_, other.num_bytes_) {}
  ByteCharge(ByteCharge&& other) noexcept
      : meter_(std::move(other.meter_)), num_bytes_(std::exchange(other.num_bytes_, 0)) {}
  ByteCharge& operator=(ByteCharge other) noexcept {
    std::swap(meter_, other.meter_);
    std::swap(num_bytes_, other.num_bytes_);
    return *this;
  }

  void Add(int64_t num_bytes) {
    if (meter_ == nullptr) return;
    num_bytes_ += num_bytes;
    meter_->Add(num_bytes);
  }
  int64_t num_bytes() const { return num_bytes_; }
  const std::shared_ptr<ByteMeter>& meter() const { return meter_; }

 private:
  std::shared_ptr<ByteMeter> meter_;
  int64_t num_bytes_ = 0;
};

}  // namespace tandem::rollout
