// The norm on the device against the CPU's, over (element, shape) rows.
#include <gtest/gtest.h>

#include "common/model/forward_kernels.h"
#include "tests/trainer/policy/cuda/element_array.h"
#include "trainer/policy/cpu/layer_kernels.h"
#include "trainer/policy/cuda/training_kernels.h"

namespace tandem::trainer::cuda {
namespace {

constexpr float kEps = 1e-6f;

struct Shape {
  int64_t rows, width;
};
// Heads, many to a block of threads, and hidden states; widths that are no multiple of 8; a lane
// with several pieces.
constexpr Shape kShapes[] = {{300, 8}, {40, 20}, {37, 64},  {19, 80},  {33, 128},
                             {9, 256}, {5, 300}, {18, 576}, {3, 4100}, {2, kMaxNormWidth}};

// Sums of many terms in another order.
double SumTolerance(Element element) { return element == Element::kFp32 ? 1e-5 : 0x1p-8; }

struct NormResult {
  std::vector<float> value, rstd;
};

NormResult NormOf(const Shape& shape, const std::vector<float>& x, const std::vector<float>& weight,
                  Element x_element, Element value_element, size_t lead = 0) {
  const ElementArray d_x(x_element, x, lead), value(value_element, x.size(), lead);
  const DeviceArray<float> d_weight(weight), rstd(static_cast<size_t>(shape.rows));
  RunNorm({.x = d_x.data(),
           .weight = d_weight.data(),
           .eps = kEps,
           .rows = shape.rows,
           .width = shape.width,
           .value = value.data(),
           .rstd = rstd.data(),
           .x_element = x_element,
           .value_element = value_element},
          nullptr);
  return {value.Read(), rstd.Read()};
}

TEST(NormKernel, DividesByTheRootOfTheMeanSquareAndMultipliesByTheWeight) {
  // A mean square of 4, next to which eps is nothing.
  const NormResult got = NormOf({1, 8}, {2, -2, 2, -2, 2, -2, 2, -2}, {1, 2, 3, 4, 5, 6, 7, 8},
                                Element::kFp32, Element::kFp32);
  ExpectClose(got.rstd, {0.5f}, 1e-6);
  ExpectClose(got.value, {1, -2, 3, -4, 5, -6, 7, -8}, 1e-6);
}

TEST(NormKernel, GivesTheCpusValues) {
  for (const Shape& shape : kShapes) {
    for (const Element from : kElements) {
      for (const Element to : kElements) {
        SCOPED_TRACE(shape.width);
        const size_t size = static_cast<size_t>(shape.rows * shape.width);
        const std::vector<float> x = Stored(from, Normal(size, 1, 3));
        const std::vector<float> weight = Normal(static_cast<size_t>(shape.width), 2);
        std::vector<float> value(size), rstd;
        for (int64_t r = 0; r < shape.rows; ++r) {
          rstd.push_back(ForwardKernelsFor(InstructionSet::kScalar)
                             .rms_norm(x.data() + r * shape.width, weight.data(), shape.width, kEps,
                                       value.data() + r * shape.width));
        }
        const NormResult got = NormOf(shape, x, weight, from, to);
        ExpectClose(got.rstd, rstd, 1e-5);
        ExpectClose(got.value, value, SumTolerance(to));
      }
    }
  }
}

TEST(NormKernel, GivesARowTheSameBitsAloneAndInCompanyAndAtAnyAddress) {
  for (const Shape& shape : kShapes) {
    SCOPED_TRACE(shape.width);
    const auto width = static_cast<size_t>(shape.width);
    const std::vector<float> x = Normal(static_cast<size_t>(shape.rows) * width, 1, 3);
    const std::vector<float> weight = Normal(width, 2);
    const NormResult all = NormOf(shape, x, weight, Element::kFp32, Element::kFp32);
    const NormResult moved = NormOf(shape, x, weight, Element::kFp32, Element::kFp32, 3);
    EXPECT_EQ(moved.value, all.value);
    EXPECT_EQ(moved.rstd, all.rstd);
    const size_t row = static_cast<size_t>(shape.rows) - 1;
    const NormResult alone = NormOf({1, shape.width}, {x.end() - shape.width, x.end()}, weight,
                                    Element::kFp32, Element::kFp32);
    EXPECT_EQ(alone.rstd[0], all.rstd[row]);
    EXPECT_TRUE(std::equal(alone.value.begin(), alone.value.end(), all.value.end() - shape.width));
  }
}

// One case of the backward pass.
struct BackwardCase {
  Shape shape;
  std::vector<float> value_grad, x, weight, rstd, x_grad_before, weight_grad_before;
  Element value_grad_element = Element::kFp32, x_element = Element::kFp32;
  Element x_grad_element = Element::kFp32;
};

BackwardCase MakeCase(const Shape& shape, Element value_grad, Element x, Element x_grad) {
  const auto rows = static_cast<size_t>(shape.rows), width = static_cast<size_t>(shape.width);
  BackwardCase c{.shape = shape,
                 .value_grad = Stored(value_grad, Normal(rows * width, 1)),
                 .x = Stored(x, Normal(rows * width, 2, 2)),
                 .weight = Normal(width, 3),
                 .x_grad_before = Stored(x_grad, Normal(rows * width, 4)),
                 .weight_grad_before = Normal(width, 5),
                 .value_grad_element = value_grad,
                 .x_element = x,
                 .x_grad_element = x_grad};
  for (size_t r = 0; r < rows; ++r) {
    double squares = 0;
    for (size_t i = 0; i < width; ++i) squares += double{c.x[r * width + i]} * c.x[r * width + i];
    c.rstd.push_back(static_cast<float>(1 / std::sqrt(squares / static_cast<double>(width))));
  }
  return c;
}

struct Grads {
  std::vector<float> x, weight;
};

Grads GradsOf(const BackwardCase& c, bool accumulate, bool frozen = false, size_t lead = 0) {
  const ElementArray value_grad(c.value_grad_element, c.value_grad, lead);
  const ElementArray x(c.x_element, c.x, lead), x_grad(c.x_grad_element, c.x_grad_before, lead);
  const DeviceArray<float> weight(c.weight), rstd(c.rstd), weight_grad(c.weight_grad_before);
  const DeviceArray<float> scratch(static_cast<size_t>(NormScratch(c.shape.rows, c.shape.width)));
  RunNormBackward({.value_grad = value_grad.data(),
                   .x = x.data(),
                   .weight = weight.data(),
                   .rstd = rstd.data(),
                   .rows = c.shape.rows,
                   .width = c.shape.width,
                   .accumulate = accumulate,
                   .x_grad = x_grad.data(),
                   .weight_grad = frozen ? nullptr : weight_grad.data(),
                   .scratch = frozen ? nullptr : scratch.data(),
                   .value_grad_element = c.value_grad_element,
                   .x_element = c.x_element,
                   .x_grad_element = c.x_grad_element},
                  nullptr);
  return {x_grad.Read(), weight_grad.Read()};
}

Grads GradsOnCpu(const BackwardCase& c, bool accumulate) {
  Grads want{c.x_grad_before, c.weight_grad_before};
  RmsNormRowsBackward(c.value_grad.data(), c.x.data(), c.weight.data(), c.rstd.data(), c.shape.rows,
                      c.shape.width, accumulate, want.x.data());
  RmsNormWeightGrad(c.value_grad.data(), c.x.data(), c.rstd.data(), c.shape.rows, c.shape.width, 0,
                    c.shape.width, want.weight.data());
  return want;
}

TEST(NormBackwardKernel, GivesTheCpusGradients) {
  for (const Shape& shape : kShapes) {
    for (const Element value_grad : kElements) {
      for (const Element x : kElements) {
        for (const Element x_grad : kElements) {
          SCOPED_TRACE(shape.width);
          const bool accumulate = value_grad != x;
          const BackwardCase c = MakeCase(shape, value_grad, x, x_grad);
          const Grads got = GradsOf(c, accumulate), want = GradsOnCpu(c, accumulate);
          ExpectClose(got.x, want.x, SumTolerance(x_grad), 1);
          ExpectClose(got.weight, want.weight, 1e-5, 1);
        }
      }
    }
  }
}

TEST(NormBackwardKernel, AddsManyBlocksOfRowsToTheWeightsGradient) {
  // Shares of 16 rows, and of 256 that lie side by side: more than one for each warp that adds
  // them.
  for (const Shape& shape : {Shape{16 * 37 + 5, 264}, {256 * 17 + 100, 128}}) {
    const BackwardCase c = MakeCase(shape, Element::kFp32, Element::kFp32, Element::kFp32);
    std::vector<double> sums(c.weight_grad_before.begin(), c.weight_grad_before.end());
    for (size_t i = 0; i < c.x.size(); ++i) {
      const size_t width = sums.size();
      sums[i % width] += double{c.value_grad[i]} * c.x[i] * c.rstd[i / width];
    }
    ExpectClose(GradsOf(c, false).weight, {sums.begin(), sums.end()}, 1e-5, 10);
  }
}

TEST(NormBackwardKernel, LeavesTheGradientOfAFrozenWeight) {
  const BackwardCase c = MakeCase({5, 576}, Element::kFp32, Element::kFp32, Element::kFp32);
  const Grads frozen = GradsOf(c, false, /*frozen=*/true);
  EXPECT_EQ(frozen.weight, c.weight_grad_before);
  EXPECT_EQ(frozen.x, GradsOf(c, false).x);
}

TEST(NormBackwardKernel, GivesEqualBitsAtAnyAddressAndARowTheSameAloneAndInCompany) {
  for (const Shape& shape : kShapes) {
    SCOPED_TRACE(shape.width);
    const BackwardCase c = MakeCase(shape, Element::kBf16, Element::kFp32, Element::kFp32);
    const Grads all = GradsOf(c, true), moved = GradsOf(c, true, false, 1);
    EXPECT_EQ(moved.x, all.x);
    EXPECT_EQ(moved.weight, all.weight);
    BackwardCase last = c;
    last.shape.rows = 1;
    for (std::vector<float>* rows : {&last.value_grad, &last.x, &last.x_grad_before}) {
      rows->erase(rows->begin(), rows->end() - shape.width);
    }
    last.rstd = {c.rstd.back()};
    const Grads alone = GradsOf(last, true);
    EXPECT_TRUE(std::equal(alone.x.begin(), alone.x.end(), all.x.end() - shape.width));
  }
}

TEST(NormBackwardKernel, MayOverwriteTheGradientItReads) {
  const BackwardCase c = MakeCase({40, 64}, Element::kBf16, Element::kBf16, Element::kBf16);
  const ElementArray grad(Element::kBf16, c.value_grad), x(Element::kBf16, c.x);
  const DeviceArray<float> weight(c.weight), rstd(c.rstd);
  RunNormBackward({.value_grad = grad.data(),
                   .x = x.data(),
                   .weight = weight.data(),
                   .rstd = rstd.data(),
                   .rows = 40,
                   .width = 64,
                   .x_grad = grad.data(),
                   .value_grad_element = Element::kBf16,
                   .x_element = Element::kBf16,
                   .x_grad_element = Element::kBf16},
                  nullptr);
  EXPECT_EQ(grad.Read(), GradsOf(c, false).x);
}

}  // namespace
}  // namespace tandem::trainer::cuda
