// linear_bench: the linear layers of SmolLM2-135M on the engine's kernel and on oneDNN inside
// LibTorch with weights it has packed, in turn in one process.
//
//   linear_bench [REPEATS]
//
// 30 layers of four products each (so that weights come from memory, as in a model), for 1 to 512
// rows. oneDNN is given bf16 as it is, and fp32 (the same numbers in twice the bytes), because a
// processor without bf16 instructions emulates the former. Prints one JSON object: GFLOP/s, and the
// engine's time in that of the faster oneDNN.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <ATen/core/dispatch/Dispatcher.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "common/base/clock.h"
#include "common/matrix/packed_matrix.h"
#include "common/process/libtorch_program.h"
#include "common/process/thread_team.h"
#include "common/tensor/instruction_set.h"

namespace tandem {
namespace {

constexpr int kLayers = 30;
constexpr int64_t kRowBlock = 64;  // most rows at a time, as in the engine
struct Shape {
  int64_t depth, columns;
};
constexpr Shape kShapes[] = {{576, 960}, {576, 576}, {576, 3072}, {1536, 576}};

// oneDNN's products of one dtype, weights packed for `rows`.
class OneDnn {
 public:
  OneDnn(at::ScalarType dtype, int64_t rows) {
    using Reorder = at::Tensor(const at::Tensor&, std::optional<int64_t>);
    const auto reorder = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("mkldnn::_reorder_linear_weight", "")
                             .typed<Reorder>();
    for (const Shape& shape : kShapes) {
      inputs_.push_back(at::randn({rows, shape.depth}).to(dtype));
      for (int layer = 0; layer < kLayers; ++layer) {
        const at::Tensor plain = at::randn({shape.columns, shape.depth}).to(dtype);
        weights_.push_back(reorder.call(plain, rows));
      }
    }
  }

  void Run() const {
    using Pointwise = at::Tensor(
        const at::Tensor&, const at::Tensor&, const std::optional<at::Tensor>&, std::string_view,
        c10::List<std::optional<at::Scalar>>, std::optional<std::string_view>);
    static const auto op = c10::Dispatcher::singleton()
                               .findSchemaOrThrow("mkldnn::_linear_pointwise", "")
                               .typed<Pointwise>();
    for (int layer = 0; layer < kLayers; ++layer) {
      for (size_t s = 0; s < std::size(kShapes); ++s) {
        op.call(inputs_[s], weights_[s * kLayers + static_cast<size_t>(layer)], std::nullopt,
                "none", c10::List<std::optional<at::Scalar>>(), "");
      }
    }
  }

 private:
  std::vector<at::Tensor> inputs_, weights_;
};

// The engine's products in bf16, items and threads as in its step.
class Ours {
 public:
  Ours(int64_t rows, int threads) : rows_(rows), team_(threads) {
    type_ = RoundedOperandType(set_);
    for (const Shape& shape : kShapes) {
      const std::vector<float> ones(static_cast<size_t>(rows * shape.depth), 1.0f);
      inputs_.emplace_back(ones.size() * static_cast<size_t>(OperandBytes(type_)));
      StoreOperand(set_, ones.data(), rows * shape.depth, true, type_, inputs_.back().data());
      outputs_.emplace_back(static_cast<size_t>(rows * Whole(shape.columns)));
      for (int layer = 0; layer < kLayers; ++layer) {
        const std::vector<uint16_t> weights(static_cast<size_t>(shape.depth * shape.columns),
                                            0x3c00);
        std::vector<const uint16_t*> row_pointers;
        for (int64_t c = 0; c < shape.columns; ++c) {
          row_pointers.push_back(weights.data() + c * shape.depth);
        }
        weights_.emplace_back(row_pointers, shape.depth);
      }
    }
  }

  void Run() {
    team_.Run([&](ThreadTeam::Member& member) {
      for (int layer = 0; layer < kLayers; ++layer) {
        for (size_t s = 0; s < std::size(kShapes); ++s) Product(member, s, layer);
      }
    });
  }

 private:
  static int64_t Whole(int64_t columns) {
    return (columns + PackedMatrix::kTileColumns - 1) / PackedMatrix::kTileColumns *
           PackedMatrix::kTileColumns;
  }

  void Product(ThreadTeam::Member& member, size_t s, int layer) {
    const PackedMatrix& matrix = weights_[s * kLayers + static_cast<size_t>(layer)];
    const int64_t blocks = (rows_ + kRowBlock - 1) / kRowBlock, tiles = matrix.num_tiles();
    const int64_t stride = Whole(matrix.columns());
    member.ForEach(tiles * blocks, [&](int64_t item) {
      const int64_t tile = item / blocks, row = rows_ * (item % blocks) / blocks;
      const int64_t end = rows_ * (item % blocks + 1) / blocks;
      const Operand x = {type_, inputs_[s].data() + row * matrix.depth() * OperandBytes(type_),
                         matrix.depth()};
      matrix.MultiplyTile(set_, tile, x, end - row,
                          outputs_[s].data() + row * stride + tile * PackedMatrix::kTileColumns,
                          stride, tile + 1 < tiles ? matrix.TileAddress(tile + 1) : nullptr);
    });
  }

  const int64_t rows_;
  const InstructionSet set_ = ActiveInstructionSet();
  OperandType type_;
  ThreadTeam team_;
  std::vector<std::vector<char>> inputs_;
  std::vector<std::vector<float>> outputs_;
  std::vector<PackedMatrix> weights_;
};

double Seconds(const std::function<void()>& run) {
  const double begin = MonotonicSeconds();
  run();
  return MonotonicSeconds() - begin;
}

double Median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + static_cast<int64_t>(values.size() / 2),
                   values.end());
  return values[values.size() / 2];
}

void Main(int repeats) {
  const at::InferenceMode inference;
  const int threads = static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
  at::set_num_threads(threads);
  double flops_per_row = 0;
  for (const Shape& shape : kShapes) {
    flops_per_row += 2.0 * kLayers * static_cast<double>(shape.depth * shape.columns);
  }
  std::printf("{\"benchmark\": \"linear\", \"instructions\": \"%s\"",
              std::string(InstructionSetName(ActiveInstructionSet())).c_str());
  for (const int64_t rows : {1, 8, 32, 64, 512}) {
    Ours ours(rows, threads);
    const OneDnn bf16(at::kBFloat16, rows), fp32(at::kFloat, rows);
    std::vector<double> our_seconds, bf16_seconds, fp32_seconds, ratios;
    for (int i = -1; i < repeats; ++i) {
      const double a = Seconds([&] { ours.Run(); }), b = Seconds([&] { bf16.Run(); }),
                   c = Seconds([&] { fp32.Run(); });
      if (i < 0) continue;  // warm-up
      our_seconds.push_back(a);
      bf16_seconds.push_back(b);
      fp32_seconds.push_back(c);
      ratios.push_back(std::min(b, c) / a);
    }
    const double flops = flops_per_row * static_cast<double>(rows) / 1e9;
    std::sort(ratios.begin(), ratios.end());
    std::printf(
        ", \"%lld\": {\"ours\": %.1f, \"onednn_bf16\": %.1f, \"onednn_fp32\": %.1f, "
        "\"ratio\": {\"median\": %.2f, \"least\": %.2f, \"most\": %.2f}}",
        static_cast<long long>(rows), flops / Median(our_seconds), flops / Median(bf16_seconds),
        flops / Median(fp32_seconds), ratios[ratios.size() / 2], ratios.front(), ratios.back());
  }
  std::printf("}\n");
}

}  // namespace
}  // namespace tandem

int main(int argc, char** argv) {
  tandem::EnsurePassiveThreads(argc, argv, environ);
  tandem::Main(argc > 1 ? std::atoi(argv[1]) : 20);
  return 0;
}
