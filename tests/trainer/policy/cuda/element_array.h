// Arrays of what an Element names, for tests of kernels whose arrays differ in it.
#pragma once

#include <memory>
#include <vector>

#include "tests/support/device/device_memory.h"

namespace tandem::trainer::cuda {

using tandem::cuda::Bf16Of;
using tandem::cuda::DeviceArray;
using tandem::cuda::Element;
using tandem::cuda::ExpectClose;
using tandem::cuda::FloatsOf;
using tandem::cuda::Normal;

inline constexpr Element kElements[] = {Element::kFp32, Element::kBf16};

// As an array of the element has them.
inline std::vector<float> Stored(Element element, const std::vector<float>& values) {
  return element == Element::kBf16 ? FloatsOf(Bf16Of(values)) : values;
}

// Values on the device. With `lead` they begin so many elements behind an address that wide loads
// take.
class ElementArray {
 public:
  ElementArray(Element element, std::vector<float> values, size_t lead = 0) : lead_(lead) {
    values.insert(values.begin(), lead, 0.0f);
    if (element == Element::kBf16) {
      bf16_ = std::make_unique<DeviceArray<uint16_t>>(Bf16Of(values));
    } else {
      fp32_ = std::make_unique<DeviceArray<float>>(values);
    }
  }
  ElementArray(Element element, size_t size, size_t lead = 0)
      : ElementArray(element, std::vector<float>(size, -7.0f), lead) {}

  void* data() const {
    if (bf16_ != nullptr) return bf16_->data() + lead_;
    return fp32_->data() + lead_;
  }
  std::vector<float> Read() const {
    std::vector<float> values = bf16_ != nullptr ? FloatsOf(bf16_->Read()) : fp32_->Read();
    values.erase(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(lead_));
    return values;
  }

 private:
  size_t lead_;
  std::unique_ptr<DeviceArray<float>> fp32_;
  std::unique_ptr<DeviceArray<uint16_t>> bf16_;
};

}  // namespace tandem::trainer::cuda
