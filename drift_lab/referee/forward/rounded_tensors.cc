#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <c10/util/Float8_e4m3fn.h>

#include <algorithm>
#include <cmath>
#include <span>

#include "drift_lab/referee/forward/k_quants.h"
#include "drift_lab/referee/forward/referee_tensors.h"
#include "drift_lab/referee/forward/rounding.h"

namespace tandem::drift {
namespace {

using Group = std::span<float>;

// `x` with every run of `group` elements of a row rounded by itself. `group` divides the elements.
template <typename Round>
at::Tensor InGroups(const at::Tensor& x, int64_t group, const Round& round) {
  at::Tensor out = x.contiguous().clone();
  float* const data = out.mutable_data_ptr<float>();
  const int64_t grain = std::max<int64_t>(1, 16384 / group);
  at::parallel_for(0, out.numel() / group, grain, [&](int64_t from, int64_t until) {
    for (int64_t g = from; g < until; ++g) {
      round(Group(data + g * group, static_cast<size_t>(group)));
    }
  });
  return out;
}

float LargestOf(Group x) {
  float largest = 0;
  for (const float value : x) largest = std::max(largest, std::abs(value));
  return largest;
}

// One scale, levels -most .. most.
void RoundSymmetric(Group x, float most, float largest) {
  const float scale = std::max(largest / most, 1e-12F);
  for (float& value : x) value = Nearest(value / scale) * scale;
}

at::Tensor Symmetric(const at::Tensor& matrix, int64_t group, int bits) {
  const auto most = static_cast<float>((1 << (bits - 1)) - 1);
  return InGroups(matrix, group, [&](Group x) { RoundSymmetric(x, most, LargestOf(x)); });
}

// One scale for the whole tensor.
at::Tensor SymmetricTensor(const at::Tensor& matrix, int bits) {
  const auto most = static_cast<float>((1 << (bits - 1)) - 1);
  const float largest = matrix.abs().max().item<float>();
  return InGroups(matrix, matrix.size(-1), [&](Group x) { RoundSymmetric(x, most, largest); });
}

// A scale and a zero point; 0 is a level.
at::Tensor Asymmetric(const at::Tensor& matrix, int64_t group, int bits) {
  const auto levels = static_cast<float>((1 << bits) - 1);
  return InGroups(matrix, group, [&](Group x) {
    float least = 0, most = 0;
    for (const float value : x) {
      least = std::min(least, value);
      most = std::max(most, value);
    }
    const float scale = std::max((most - least) / levels, 1e-12F);
    const float zero = Nearest(-least / scale);
    for (float& value : x) {
      const float level = std::min(std::max(Nearest(value / scale) + zero, 0.0F), levels);
      value = (level - zero) * scale;
    }
  });
}

// q4_0 and q5_0 of llama.cpp: the value of the largest magnitude is on the level -2^(bits - 1).
at::Tensor SignedBlocks(const at::Tensor& matrix, int bits) {
  const auto half = static_cast<float>(1 << (bits - 1));
  return InGroups(matrix, 32, [&](Group x) {
    float most = 0;
    for (const float value : x) {
      if (std::abs(value) > std::abs(most)) most = value;
    }
    const float scale = most / -half, inverse = scale == 0 ? 0 : 1 / scale, stored = AsHalf(scale);
    for (float& value : x) {
      const float level = std::floor(value * inverse + (half + 0.5F));
      value = (std::min(std::max(level, 0.0F), 2 * half - 1) - half) * stored;
    }
  });
}

at::Tensor Q8Blocks(const at::Tensor& x) {
  return InGroups(x, 32, [](Group block) {
    const float scale = LargestOf(block) / 127;
    const float inverse = scale == 0 ? 0 : 1 / scale, stored = AsHalf(scale);
    for (float& value : block) value = Nearest(value * inverse) * stored;
  });
}

void RoundFp8(Group x, float largest) {
  const float scale = std::max(largest / 448, 1e-12F);
  for (float& value : x) {
    const float scaled = std::min(std::max(value / scale, -448.0F), 448.0F);
    value = static_cast<float>(c10::Float8_e4m3fn(scaled)) * scale;
  }
}

at::Tensor Fp8Channel(const at::Tensor& matrix) {
  return InGroups(matrix, matrix.size(-1), [](Group x) { RoundFp8(x, LargestOf(x)); });
}

at::Tensor Fp8Tensor(const at::Tensor& matrix) {
  const float largest = matrix.abs().max().item<float>();
  return InGroups(matrix, matrix.size(-1), [&](Group x) { RoundFp8(x, largest); });
}

// Rows that do not divide into super-blocks get what llama.cpp falls back to.
at::Tensor SuperBlocks(const at::Tensor& matrix, WeightFormat format) {
  const bool four = format == WeightFormat::kQ4K;
  if (matrix.size(-1) % static_cast<int64_t>(kSuperBlock) != 0) {
    if (matrix.size(-1) % 32 != 0) return matrix;
    return four ? SignedBlocks(matrix, 5) : Q8Blocks(matrix);
  }
  return InGroups(matrix, static_cast<int64_t>(kSuperBlock), [&](Group block) {
    const std::span<float, kSuperBlock> weights(block.data(), kSuperBlock);
    four ? RoundToQ4K(weights) : RoundToQ6K(weights);
  });
}

// `group` where it divides the rows, else one group for each row.
int64_t GroupFor(const at::Tensor& matrix, int64_t group) {
  return matrix.size(-1) % group == 0 ? group : matrix.size(-1);
}

}  // namespace

at::Tensor RoundedToE4m3(const at::Tensor& x) {
  return x.clamp(-448, 448).to(at::kFloat8_e4m3fn).to(at::kFloat);
}

at::Tensor RoundedVectors(const at::Tensor& x, int bits) { return Symmetric(x, x.size(-1), bits); }

at::Tensor RoundedActivations(const at::Tensor& x, int64_t block) {
  if (block == 32) return x.size(-1) % 32 == 0 ? Q8Blocks(x) : x;
  return x.size(-1) % block == 0 ? Symmetric(x, block, 8) : x;
}

at::Tensor RoundedWeights(const at::Tensor& matrix, WeightFormat format) {
  const int64_t channel = matrix.size(-1);
  switch (format) {
    case WeightFormat::kOwn:
      return matrix;
    case WeightFormat::kInt8Tensor:
      return SymmetricTensor(matrix, 8);
    case WeightFormat::kInt8Channel:
      return Symmetric(matrix, channel, 8);
    case WeightFormat::kInt8Group128:
      return Symmetric(matrix, GroupFor(matrix, 128), 8);
    case WeightFormat::kQ8Block32:
      return channel % 32 == 0 ? Q8Blocks(matrix) : matrix;
    case WeightFormat::kFp8Tensor:
      return Fp8Tensor(matrix);
    case WeightFormat::kFp8Channel:
      return Fp8Channel(matrix);
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
    case WeightFormat::kQ4K:
    case WeightFormat::kQ6K:
    case WeightFormat::kQ4KMedium:
      return SuperBlocks(matrix, format);
  }
  return matrix;
}

}  // namespace tandem::drift
