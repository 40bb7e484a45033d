#include "drift_lab/replay/vector_sketch.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <random>

namespace tandem::drift {
namespace {

// The same `width` entries twice, so that they can be read from any offset without a wrap.
std::vector<uint32_t> RandomSigns(int64_t width, std::mt19937_64& random) {
  std::vector<uint32_t> signs(static_cast<size_t>(2 * width));
  const auto half = signs.begin() + width;
  std::generate(signs.begin(), half, [&] { return random() >> 63 ? 0x80000000u : 0u; });
  std::copy(signs.begin(), half, half);
  return signs;
}

void AddSigned(const float* from, const uint32_t* first, const uint32_t* second, int64_t count,
               float* to) {
  for (int64_t i = 0; i < count; ++i) {
    to[i] += std::bit_cast<float>(std::bit_cast<uint32_t>(from[i]) ^ first[i] ^ second[i]);
  }
}

}  // namespace

VectorSketch::VectorSketch(int64_t num_elements, int64_t width, uint64_t seed)
    : width_(std::max<int64_t>(1, std::min(width, num_elements))) {
  std::mt19937_64 random(seed);
  const auto place = [&] { return static_cast<int64_t>(random() % static_cast<uint64_t>(width_)); };
  const int64_t num_blocks = (num_elements + width_ - 1) / width_;
  for (int64_t b = 0; b < num_blocks; ++b) blocks_.push_back({place(), place(), place()});
  first_signs_ = RandomSigns(width_, random);
  second_signs_ = RandomSigns(width_, random);
}

void VectorSketch::Add(int64_t offset, std::span<const float> part, std::span<float> sketch) const {
  const auto size = static_cast<int64_t>(part.size());
  for (int64_t done = 0; done < size;) {
    const int64_t p = offset + done, in_block = p % width_;
    const Block& block = blocks_[static_cast<size_t>(p / width_)];
    const int64_t place = (in_block + block.shift) % width_;
    const int64_t run = std::min({size - done, width_ - in_block, width_ - place});
    AddSigned(part.data() + done, first_signs_.data() + in_block + block.first_signs,
              second_signs_.data() + in_block + block.second_signs, run, sketch.data() + place);
    done += run;
  }
}

double VectorSketch::relative_error() const {
  return is_exact() ? 0 : std::sqrt(2 / static_cast<double>(width_));
}

}  // namespace tandem::drift
