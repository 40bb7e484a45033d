// matrix_bench: the linear layers of SmolLM2-135M on the engine's kernels, with weights in every
// format and operands of every type, in turn in one process.
//
//   matrix_bench [REPEATS [ROWS...]]
//
// 30 layers of four products each (so that weights come from memory, as in a model), for 1 to 512
// rows, or for ROWS; quantising the rows is part of the work. Prints one JSON object: for each number
// of rows and each format, GFLOP/s, bytes of weights per second, and the speed in that of bf16
// (median, least and most over the repeats).
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "common/base/clock.h"
#include "common/matrix/packed_matrix.h"
#include "common/process/thread_team.h"
#include "common/tensor/instruction_set.h"
#include "common/tensor/machine_limits.h"

namespace tandem {
namespace {

constexpr int kLayers = 30;
constexpr int64_t kRowBlock = 64;  // most rows at a time, as in the engine
struct Shape {
  int64_t depth, columns;
};
constexpr Shape kShapes[] = {{576, 960}, {576, 576}, {576, 3072}, {1536, 576}};

struct Variant {
  const char* name;
  WeightFormat format;
  bool int8_rows;
};
constexpr Variant kVariants[] = {
    {"bf16", {WeightScheme::kWide}, false},
    {"int8_rows_int8", {WeightScheme::kInt8}, true},
    {"int8_rows_wide", {WeightScheme::kInt8}, false},
    {"fp8_rows_wide", {WeightScheme::kFp8E4m3}, false},
    {"int4_rows_int8", {WeightScheme::kInt4Group, 32}, true},
    {"int4_rows_wide", {WeightScheme::kInt4Group, 32}, false},
};

int64_t Whole(int64_t columns) {
  return (columns + PackedMatrix::kTileColumns - 1) / PackedMatrix::kTileColumns *
         PackedMatrix::kTileColumns;
}

// One variant's matrices and rows; items and threads as in the engine's step.
class Products {
 public:
  Products(const Variant& variant, int64_t rows, ThreadTeam& team)
      : rows_(rows), int8_rows_(variant.int8_rows), team_(team) {
    std::mt19937 random(1);
    std::normal_distribution<float> normal(0.0f, 0.02f);
    for (const Shape& shape : kShapes) {
      std::vector<float> values(static_cast<size_t>(rows * shape.depth));
      for (float& x : values) x = normal(random);
      std::vector<uint16_t> weights(static_cast<size_t>(shape.depth * shape.columns));
      for (uint16_t& w : weights) w = static_cast<uint16_t>(0x3c00 + random() % 128);
      std::vector<const uint16_t*> pointers;
      for (int64_t c = 0; c < shape.columns; ++c) {
        pointers.push_back(weights.data() + c * shape.depth);
      }
      for (int layer = 0; layer < kLayers; ++layer) {
        matrices_.emplace_back(pointers, shape.depth, variant.format);
      }
      inputs_.push_back(values);
      stored_.emplace_back(static_cast<size_t>(rows * Int8Stride(shape.depth) * 4));
      scales_.emplace_back(static_cast<size_t>(rows));
      sums_.emplace_back(static_cast<size_t>(rows * Int8Sums(shape.depth)));
      outputs_.emplace_back(static_cast<size_t>(rows * Whole(shape.columns)));
    }
  }

  void Run() {
    team_.Run([&](ThreadTeam::Member& member) {
      for (int layer = 0; layer < kLayers; ++layer) {
        for (size_t s = 0; s < std::size(kShapes); ++s) Product(member, s, layer);
      }
    });
  }

  double bytes() const {
    double total = 0;
    for (const PackedMatrix& matrix : matrices_) total += static_cast<double>(matrix.bytes());
    return total;
  }

 private:
  Operand StoreRows(ThreadTeam::Member& member, size_t s) {
    const int64_t depth = kShapes[s].depth;
    const OperandType type = int8_rows_ ? OperandType::kInt8 : RoundedOperandType(set_);
    const int64_t stride = int8_rows_ ? Int8Stride(depth) : depth;
    member.ForEach(rows_, [&](int64_t r) {
      const float* row = inputs_[s].data() + r * depth;
      char* out = stored_[s].data() + r * stride * OperandBytes(type);
      if (int8_rows_) {
        scales_[s][r] = StoreInt8Operand(set_, row, depth, reinterpret_cast<int8_t*>(out),
                                         sums_[s].data() + r * Int8Sums(depth));
      } else {
        StoreOperand(set_, row, depth, true, type, out);
      }
    });
    return {type, stored_[s].data(), stride, scales_[s].data(), sums_[s].data()};
  }

  void Product(ThreadTeam::Member& member, size_t s, int layer) {
    const Operand all = StoreRows(member, s);
    const PackedMatrix& matrix = matrices_[s * kLayers + static_cast<size_t>(layer)];
    const int64_t blocks = (rows_ + kRowBlock - 1) / kRowBlock, tiles = matrix.num_tiles();
    const int64_t stride = Whole(matrix.columns());
    member.ForEach(tiles * blocks, [&](int64_t item) {
      const int64_t tile = item / blocks, row = rows_ * (item % blocks) / blocks;
      const int64_t end = rows_ * (item % blocks + 1) / blocks;
      const Operand x = all.From(row, matrix.depth());
      matrix.MultiplyTile(set_, tile, x, end - row,
                          outputs_[s].data() + row * stride + tile * PackedMatrix::kTileColumns,
                          stride, tile + 1 < tiles ? matrix.TileAddress(tile + 1) : nullptr);
    });
  }

  const int64_t rows_;
  const bool int8_rows_;
  const InstructionSet set_ = ActiveInstructionSet();
  ThreadTeam& team_;
  std::vector<PackedMatrix> matrices_;
  std::vector<std::vector<float>> inputs_, scales_, outputs_;
  std::vector<std::vector<char>> stored_;
  std::vector<std::vector<int32_t>> sums_;
};

double Seconds(Products& products) {
  const double begin = MonotonicSeconds();
  products.Run();
  return MonotonicSeconds() - begin;
}

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

void Main(int repeats, const std::vector<int64_t>& row_counts) {
  ThreadTeam team(static_cast<int>(std::max(1u, std::thread::hardware_concurrency())));
  const MachineLimits limits = MeasureMachineLimits(team, ActiveInstructionSet());
  double flops_per_row = 0;
  for (const Shape& shape : kShapes) {
    flops_per_row += 2.0 * kLayers * static_cast<double>(shape.depth * shape.columns);
  }
  std::printf(
      "{\"benchmark\": \"matrix\", \"instructions\": \"%s\", \"limit_gb_per_s\": %.1f, "
      "\"limit_bf16_gflops\": %.0f",
      std::string(InstructionSetName(ActiveInstructionSet())).c_str(),
      limits.read_bytes_per_second / 1e9, limits.bf16_flops_per_second / 1e9);
  for (const int64_t rows : row_counts) {
    std::vector<Products> all;
    all.reserve(std::size(kVariants));
    for (const Variant& variant : kVariants) all.emplace_back(variant, rows, team);
    std::vector<std::vector<double>> seconds(all.size()), ratios(all.size());
    for (int i = -1; i < repeats; ++i) {
      double bf16 = 0;
      for (size_t v = 0; v < all.size(); ++v) {
        const double one = Seconds(all[v]);
        if (v == 0) bf16 = one;
        if (i < 0) continue;  // warm-up
        seconds[v].push_back(one);
        ratios[v].push_back(bf16 / one);
      }
    }
    std::printf(",\n \"%lld\": {", static_cast<long long>(rows));
    for (size_t v = 0; v < all.size(); ++v) {
      const double median = Median(seconds[v]);
      std::sort(ratios[v].begin(), ratios[v].end());
      std::printf(
          "%s\n  \"%s\": {\"gflops\": %.1f, \"gb_per_s\": %.1f, \"speed\": {\"median\": %.2f, "
          "\"least\": %.2f, \"most\": %.2f}}",
          v == 0 ? "" : ",", kVariants[v].name,
          flops_per_row * static_cast<double>(rows) / median / 1e9, all[v].bytes() / median / 1e9,
          Median(ratios[v]), ratios[v].front(), ratios[v].back());
    }
    std::printf("}");
  }
  std::printf("}\n");
}

}  // namespace
}  // namespace tandem

int main(int argc, char** argv) {
  std::vector<int64_t> rows;
  for (int i = 2; i < argc; ++i) rows.push_back(std::atoll(argv[i]));
  if (rows.empty()) rows = {1, 2, 4, 8, 16, 32, 64, 512};
  tandem::Main(argc > 1 ? std::atoi(argv[1]) : 20, rows);
  return 0;
}
