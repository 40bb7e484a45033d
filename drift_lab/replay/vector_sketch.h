// VectorSketch: maps vectors of many elements to short ones that have the same inner products,
// within a known error. Pure.
//
//   sketch[(p + r_b) mod k] += s(p) v[p],   b = p / k,  s(p) = +-1,  r_b and s random
//
// It is a CountSketch (Charikar, Chen and Farach-Colton 2002) whose hash shifts whole blocks of k
// elements, so that memory is read in order. A block's signs are products of two random tables,
// each read from a random offset of the block. Invariants: E <sketch(u), sketch(v)> = <u, v>, with
// a variance of at most about (|u|^2 |v|^2 + <u, v>^2) / k; and with only one block (n <= k) the
// inner products are exact.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace tandem::drift {

class VectorSketch {
 public:
  // For vectors of `num_elements` elements; the sketch has at most `width`. It is a function of the
  // seed and the two sizes.
  VectorSketch(int64_t num_elements, int64_t width, uint64_t seed);

  // Adds the elements [offset, offset + part.size()) of a vector to `sketch` [width()].
  void Add(int64_t offset, std::span<const float> part, std::span<float> sketch) const;

  int64_t width() const { return width_; }
  bool is_exact() const { return blocks_.size() <= 1; }
  // The relative standard error of a squared norm: sqrt(2 / k), or 0 if exact.
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
