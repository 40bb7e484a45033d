#include "drift_lab/vector_sketch.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <random>

namespace tandem::drift {

VectorSketch::VectorSketch(int64_t num_elements, int64_t width, uint64_t seed)
    : width_(std::max<int64_t>(1, std::min(width, num_elements))) {
  std::mt19937_64 random(seed);
  const auto place = [&] {
    return static_cast<int64_t>(random() % static_cast<uint64_t>(width_));
  };
  const int64_t num_blocks = (num_elements + width_ - 1) / width_;
  for (int64_t b = 0; b < num_blocks; ++b) {
    shifts_.push_back(place());
    sign_offsets_.push_back(place());
  }
  signs_.resize(static_cast<size_t>(2 * width_));
  const auto half = signs_.begin() + width_;
  std::generate(signs_.begin(), half, [&] { return random() >> 63 ? 0x80000000u : 0u; });
  std::copy(signs_.begin(), half, half);  // read from any offset without a wrap
}

// A run within one block that does not wrap in the sketch.
void VectorSketch::AddRun(const float* from, int64_t count, int64_t place, int64_t sign_place,
                          float* sketch) const {
  float* const to = sketch + place;
  const uint32_t* const signs = signs_.data() + sign_place;
  for (int64_t i = 0; i < count; ++i) {
    to[i] += std::bit_cast<float>(std::bit_cast<uint32_t>(from[i]) ^ signs[i]);
  }
}

void VectorSketch::Add(int64_t offset, std::span<const float> part, std::span<float> sketch) const {
  const auto size = static_cast<int64_t>(part.size());
  for (int64_t done = 0; done < size;) {
    const int64_t p = offset + done, in_block = p % width_;
    const auto block = static_cast<size_t>(p / width_);
    const int64_t place = (in_block + shifts_[block]) % width_;
    const int64_t run = std::min({size - done, width_ - in_block, width_ - place});
    AddRun(part.data() + done, run, place, in_block + sign_offsets_[block], sketch.data());
    done += run;
  }
}

double VectorSketch::relative_error() const {
  return is_exact() ? 0 : std::sqrt(2 / static_cast<double>(width_));
}

}  // namespace tandem::drift
