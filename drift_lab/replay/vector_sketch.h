// VectorSketch: vectors of many elements as short ones with the same inner products, within a
// stated error.
//
//   sketch[(p + r_b) mod k] += s(p) v[p],   b = p / k,  s(p) = +-1,  r_b and s random
//
// A CountSketch (Charikar, Chen and Farach-Colton 2002) whose hash shifts blocks of k elements as
// wholes, so that it reads memory in order; a block's signs are products of two random tables, each
// read from a random offset of the block's own. E <sketch(u), sketch(v)> = <u, v>, with a variance
// of at most about
// (|u|^2 |v|^2 + <u, v>^2) / k; exact when there is only one block, n <= k. Pure.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace tandem::drift {

class VectorSketch {
 public:
  // Of vectors of `num_elements`, with at most `width` elements of its own. The same seed and sizes
  // give the same sketch.
  VectorSketch(int64_t num_elements, int64_t width, uint64_t seed);

  // Adds elements [offset, offset + part.size()) of a vector to `sketch` [width()].
  void Add(int64_t offset, std::span<const float> part, std::span<float> sketch) const;

  int64_t width() const { return width_; }
  bool is_exact() const { return blocks_.size() <= 1; }
  // Relative standard error of a squared length: sqrt(2 / k), or 0.
  double relative_error() const;

 private:
  // Random offsets of a block, each in [0, width).
  struct Block {
    int64_t shift = 0, first_signs = 0, second_signs = 0;  // shift: r_b
  };

  int64_t width_;
  std::vector<Block> blocks_;
  std::vector<uint32_t> first_signs_, second_signs_;  // [2 width]: 0 or the sign bit of a float
};

}  // namespace tandem::drift
