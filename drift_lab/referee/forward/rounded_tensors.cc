#include <ATen/ATen.h>

#include "drift_lab/referee/forward/referee_tensors.h"

namespace tandem::drift {
namespace {

// [N, G] groups of `matrix`; the whole tensor with 0.
at::Tensor Groups(const at::Tensor& matrix, int64_t group) {
  return group == 0 ? matrix.reshape({1, -1}) : matrix.reshape({-1, group});
}

at::Tensor Symmetric(const at::Tensor& matrix, int64_t group, int bits) {
  const at::Tensor x = Groups(matrix, group);
  const double levels = static_cast<double>((1 << (bits - 1)) - 1);
  const at::Tensor scale = (x.abs().amax(1, true) / levels).clamp_min(1e-12);
  return (x / scale).round().mul_(scale).reshape(matrix.sizes());
}

at::Tensor Asymmetric(const at::Tensor& matrix, int64_t group, int bits) {
  const at::Tensor x = Groups(matrix, group);
  const double levels = static_cast<double>((1 << bits) - 1);
  const at::Tensor least = x.amin(1, true).clamp_max(0);
  const at::Tensor most = x.amax(1, true).clamp_min(0);
  const at::Tensor scale = ((most - least) / levels).clamp_min(1e-12);
  const at::Tensor zero = (-least / scale).round();
  return ((x / scale).round() + zero)
      .clamp(0, levels)
      .sub_(zero)
      .mul_(scale)
      .reshape(matrix.sizes());
}

// q4_0 and q5_0 of llama.cpp: the value of the largest magnitude is on the level -2^(bits - 1).
at::Tensor SignedBlocks(const at::Tensor& matrix, int bits) {
  const at::Tensor x = Groups(matrix, 32);
  const double half = static_cast<double>(1 << (bits - 1));
  const at::Tensor at_most = x.abs().argmax(1, true);
  const at::Tensor scale = x.gather(1, at_most) / -half;
  const at::Tensor inverse = at::where(scale == 0, at::zeros_like(scale), 1 / scale);
  const at::Tensor levels = (x * inverse + (half + 0.5)).floor().clamp(0, 2 * half - 1) - half;
  return (levels * scale.to(at::kHalf).to(at::kFloat)).reshape(matrix.sizes());
}

at::Tensor Q8Blocks(const at::Tensor& matrix) {
  const at::Tensor x = Groups(matrix, 32);
  const at::Tensor scale = x.abs().amax(1, true) / 127;
  const at::Tensor inverse = at::where(scale == 0, at::zeros_like(scale), 1 / scale);
  return ((x * inverse).round() * scale.to(at::kHalf).to(at::kFloat)).reshape(matrix.sizes());
}

at::Tensor Fp8(const at::Tensor& matrix, int64_t group) {
  const at::Tensor x = Groups(matrix, group);
  const at::Tensor scale = (x.abs().amax(1, true) / 448).clamp_min(1e-12);
  return RoundedToE4m3(x / scale).mul_(scale).reshape(matrix.sizes());
}

// `group` where it divides the rows, else one group for each row.
int64_t GroupFor(const at::Tensor& matrix, int64_t group) {
  return matrix.size(-1) % group == 0 ? group : matrix.size(-1);
}

}  // namespace

at::Tensor RoundedToE4m3(const at::Tensor& x) {
  return x.clamp(-448, 448).to(at::kFloat8_e4m3fn).to(at::kFloat);
}

at::Tensor RoundedVectors(const at::Tensor& x, int bits) {
  const double levels = static_cast<double>((1 << (bits - 1)) - 1);
  const at::Tensor scale = (x.abs().amax(-1, true) / levels).clamp_min(1e-12);
  return (x / scale).round().mul_(scale);
}

at::Tensor RoundedActivations(const at::Tensor& x) {
  return x.size(-1) % 32 == 0 ? Q8Blocks(x.contiguous()) : x;
}

at::Tensor RoundedWeights(const at::Tensor& matrix, WeightFormat format) {
  const int64_t channel = matrix.size(-1);
  switch (format) {
    case WeightFormat::kOwn:
      return matrix;
    case WeightFormat::kInt8Tensor:
      return Symmetric(matrix, 0, 8);
    case WeightFormat::kInt8Channel:
      return Symmetric(matrix, channel, 8);
    case WeightFormat::kInt8Group128:
      return Symmetric(matrix, GroupFor(matrix, 128), 8);
    case WeightFormat::kQ8Block32:
      return channel % 32 == 0 ? Q8Blocks(matrix) : matrix;
    case WeightFormat::kFp8Tensor:
      return Fp8(matrix, 0);
    case WeightFormat::kFp8Channel:
      return Fp8(matrix, channel);
    case WeightFormat::kInt4Group32:
      return Symmetric(matrix, GroupFor(matrix, 32), 4);
    case WeightFormat::kInt4Group64:
      return Symmetric(matrix, GroupFor(matrix, 64), 4);
    case WeightFormat::kInt4Group128:
      return Symmetric(matrix, GroupFor(matrix, 128), 4);
    case WeightFormat::kInt4Channel:
      return Symmetric(matrix, channel, 4);
    case WeightFormat::kQ4Block32:
      return channel % 32 == 0 ? SignedBlocks(matrix, 4) : matrix;
    case WeightFormat::kQ5Block32:
      return channel % 32 == 0 ? SignedBlocks(matrix, 5) : matrix;
    case WeightFormat::kAsym4Group32:
      return Asymmetric(matrix, GroupFor(matrix, 32), 4);
    case WeightFormat::kAsym4Group64:
      return Asymmetric(matrix, GroupFor(matrix, 64), 4);
    case WeightFormat::kAsym4Group128:
      return Asymmetric(matrix, GroupFor(matrix, 128), 4);
    case WeightFormat::kAsym8Channel:
      return Asymmetric(matrix, channel, 8);
  }
  return matrix;
}

}  // namespace tandem::drift
