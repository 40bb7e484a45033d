#include "common/model/numerics_self_test.h"

#include <algorithm>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/matrix/packed_matrix.h"
#include "common/model/forward_kernels.h"
#include "common/model/token_distribution.h"
#include "common/tensor/bf16_rounding.h"

namespace tandem {
namespace {

constexpr int64_t kRows = 37;     // three tiles of 12 and a remainder
constexpr int64_t kColumns = 48;  // one tile of two panels and one of one panel
constexpr int64_t kTokens = 40;   // tokens of a sequence: blocks of 16, 16 and 8

std::vector<float> Normal(int64_t size, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values(static_cast<size_t>(size));
  for (float& x : values) x = normal(random);
  return values;
}

bool SameBits(const float* a, const float* b, int64_t n) {
  return std::memcmp(a, b, static_cast<size_t>(n) * sizeof(float)) == 0;
}

absl::Status Broken(const std::string& kernel, InstructionSet set) {
  return FailedPrecondition(
      "this machine does not keep the promise of numerics invariant and exact: ", kernel, " (",
      InstructionSetName(set),
      ") gives other bits for a row alone than in a batch. Use numerics "
      "fast, or set TANDEM_INSTRUCTION_SET to a lower set, and please report the processor");
}

absl::Status CheckProduct(int64_t depth, bool bf16, OperandType type, InstructionSet set) {
  const std::vector<float> x = Normal(kRows * depth, 1), weights = Normal(kColumns * depth, 2);
  std::vector<uint16_t> bits(weights.size());
  std::transform(weights.begin(), weights.end(), bits.begin(), NearestBf16);
  std::vector<const float*> rows;
  std::vector<const uint16_t*> bf16_rows;
  for (int64_t c = 0; c < kColumns; ++c) {
    rows.push_back(weights.data() + c * depth);
    bf16_rows.push_back(bits.data() + c * depth);
  }
  const PackedMatrix matrix = bf16 ? PackedMatrix(bf16_rows, depth) : PackedMatrix(rows, depth);
  const int64_t row_bytes = depth * OperandBytes(type);
  std::vector<char> operand(static_cast<size_t>(kRows * row_bytes));
  for (int64_t r = 0; r < kRows; ++r) {
    StoreOperand(set, x.data() + r * depth, depth, bf16, type, operand.data() + r * row_bytes);
  }
  constexpr int64_t kTile = PackedMatrix::kTileColumns;
  std::vector<float> together(kRows * kTile), alone(kTile);
  for (int64_t tile = 0; tile < matrix.num_tiles(); ++tile) {
    const int64_t width = std::min(kTile, kColumns - tile * kTile);
    matrix.MultiplyTile(set, tile, {type, operand.data(), depth}, kRows, together.data(), kTile);
    for (int64_t r = 0; r < kRows; ++r) {
      matrix.MultiplyTile(set, tile, {type, operand.data() + r * row_bytes, depth}, 1, alone.data(),
                          kTile);
      if (!SameBits(alone.data(), together.data() + r * kTile, width)) {
        return Broken(absl::StrCat("a product over ", depth, bf16 ? " bf16" : " fp32", " inputs"),
                      set);
      }
    }
  }
  return absl::OkStatus();
}

absl::Status CheckRows(const ModelConfig& config, InstructionSet set) {
  const ForwardKernels& kernels = ForwardKernelsFor(set);
  const int64_t width = config.hidden_size;
  const std::vector<float> row = Normal(width, 3), weight = Normal(width, 4);
  const std::vector<float> logits = Normal(config.vocab_size, 5);
  std::vector<float> want(width), got(width);
  kernels.rms_norm(row.data(), weight.data(), width, 1e-5f, want.data());
  const TokenDistribution distribution = DistributionOf(set, logits, 0.7f);
  for (size_t offset = 1; offset < 16; offset += 3) {  // other alignments
    std::vector<float> moved(offset);
    moved.insert(moved.end(), row.begin(), row.end());
    kernels.rms_norm(moved.data() + offset, weight.data(), width, 1e-5f, got.data());
    if (!SameBits(want.data(), got.data(), width)) return Broken("a norm", set);
    moved.resize(offset);
    moved.insert(moved.end(), logits.begin(), logits.end());
    const TokenDistribution other =
        DistributionOf(set, std::span<const float>(moved).subspan(offset), 0.7f);
    if (other.mass != distribution.mass || other.second != distribution.second) {
      return Broken("a softmax over the vocabulary", set);
    }
  }
  return absl::OkStatus();
}

template <typename Kv>
absl::Status CheckAttention(const ModelConfig& config, InstructionSet set) {
  const ForwardKernels& kernels = ForwardKernelsFor(set);
  const int64_t d = config.head_dim, group = config.num_heads / config.num_kv_heads;
  const int64_t num_blocks = (kTokens + kKvBlockTokens - 1) / kKvBlockTokens;
  std::vector<Kv> keys(num_blocks * d * kKvBlockTokens);
  std::vector<Kv> values(num_blocks * PaddedHeadDim(d) * kKvBlockTokens);
  AttentionTask<Kv> task;
  task.layer.keys = keys.data();
  task.layer.values = values.data();
  task.layer.key_block_stride = d * kKvBlockTokens;
  task.layer.value_block_stride = PaddedHeadDim(d) * kKvBlockTokens;
  std::vector<int32_t> blocks;
  for (int32_t b = 0; b < num_blocks; ++b) blocks.push_back(b);
  for (int64_t t = 0; t < kTokens; ++t) {
    const std::vector<float> key = Normal(d, 100 + t), value = Normal(d, 500 + t);
    const int64_t block = t / kKvBlockTokens, slot = t % kKvBlockTokens;
    kernels.WriteKv<Kv>()(key.data(), value.data(), d, task.layer, {block, 0, slot});
  }
  const std::vector<float> queries = Normal(kTokens * group * d, 6);
  std::vector<float> scratch(AttentionScratch(kTokens));
  const auto run = [&](int64_t first, int64_t count, float* out) {
    task.queries = queries.data() + first * group * d;
    task.query_stride = group * d;
    task.num_tokens = count;
    task.num_heads = group;
    task.head_dim = d;
    task.first_position = first;
    task.blocks = blocks.data();
    task.out = out;
    task.out_stride = group * d;
    kernels.Attend<Kv>()(task, scratch.data());
  };
  std::vector<float> together(kTokens * group * d), alone(group * d);
  run(0, kTokens, together.data());
  for (int64_t t = 0; t < kTokens; ++t) {
    run(t, 1, alone.data());
    if (!SameBits(alone.data(), together.data() + t * group * d, group * d)) {
      return Broken("attention", set);
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckInvariance(const ModelConfig& config, InstructionSet set) {
  for (const int64_t depth :
       {config.hidden_size, config.intermediate_size, config.num_heads * config.head_dim}) {
    TANDEM_RETURN_IF_ERROR(CheckProduct(depth, false, OperandType::kFp32, set));
    TANDEM_RETURN_IF_ERROR(CheckProduct(depth, true, OperandType::kFp32, set));
    TANDEM_RETURN_IF_ERROR(CheckProduct(depth, true, RoundedOperandType(set), set));
  }
  TANDEM_RETURN_IF_ERROR(CheckRows(config, set));
  TANDEM_RETURN_IF_ERROR(CheckAttention<float>(config, set));
  return CheckAttention<uint16_t>(config, set);
}

}  // namespace tandem
