// Rotary embedding and SwiGLU on the device against the CPU's, over (element, shape) rows.
#include <gtest/gtest.h>

#include "common/model/forward_kernels.h"
#include "tests/trainer/policy/cuda/element_array.h"
#include "trainer/policy/cpu/layer_kernels.h"
#include "trainer/policy/cuda/training_kernels.h"

namespace tandem::trainer::cuda {
namespace {

const ForwardKernels& Cpu() { return ForwardKernelsFor(InstructionSet::kScalar); }
double ExpTolerance(Element element) { return element == Element::kFp32 ? 1e-5 : 0x1p-8; }

struct Heads {
  int64_t rows, heads, head_dim;
};
constexpr Heads kHeads[] = {{3, 4, 8},   {2, 3, 72},  {5, 9, 64},
                            {2, 2, 128}, {2, 1, 256}, {3, 40, 128}};

struct RotaryCase {
  Heads shape;
  std::vector<float> x, cosine, sine;
};

RotaryCase MakeRotary(const Heads& shape, Element element) {
  const int64_t half = shape.head_dim / 2;
  RotaryCase c{shape, {}, {}, {}};
  c.x = Stored(element, Normal(static_cast<size_t>(shape.rows * shape.heads * 2 * half), 1));
  for (const float angle : Normal(static_cast<size_t>(shape.rows * half), 2, 3)) {
    c.cosine.push_back(std::cos(angle));
    c.sine.push_back(std::sin(angle));
  }
  return c;
}

std::vector<float> Rotated(const RotaryCase& c, const std::vector<float>& x, Element in,
                           Element out, bool backward, size_t lead = 0) {
  const ElementArray from(in, x, lead), to(out, x.size(), lead);
  const DeviceArray<float> cosine(c.cosine), sine(c.sine);
  RunRotary({.in = from.data(),
             .cosine = cosine.data(),
             .sine = sine.data(),
             .rows = c.shape.rows,
             .heads = c.shape.heads,
             .head_dim = c.shape.head_dim,
             .backward = backward,
             .out = to.data(),
             .in_element = in,
             .out_element = out},
            nullptr);
  return to.Read();
}

std::vector<float> RotatedOnCpu(const RotaryCase& c, bool backward) {
  const int64_t d = c.shape.head_dim;
  std::vector<float> x = c.x, sine = c.sine;
  for (float& one : sine) one = backward ? -one : one;
  for (int64_t r = 0; r < c.shape.rows; ++r) {
    for (int64_t h = 0; h < c.shape.heads; ++h) {
      Cpu().rotate(x.data() + (r * c.shape.heads + h) * d, c.cosine.data() + r * d / 2,
                   sine.data() + r * d / 2, d, {d, /*interleaved=*/false}, 1.0f);
    }
  }
  return x;
}

TEST(RotaryKernel, TurnsTheFirstHalfTowardsTheSecond) {
  // A quarter turn: (1, 2 | 3, 4) to (-3, -4 | 1, 2), and back.
  const RotaryCase c{{1, 1, 4}, {1, 2, 3, 4}, {0, 0}, {1, 1}};
  const auto fp32 = Element::kFp32;
  EXPECT_EQ(Rotated(c, c.x, fp32, fp32, false), (std::vector<float>{-3, -4, 1, 2}));
  EXPECT_EQ(Rotated(c, {-3, -4, 1, 2}, fp32, fp32, true), c.x);
}

TEST(RotaryKernel, GivesTheCpusHeadsForwardAndBackward) {
  for (const Heads& shape : kHeads) {
    for (const Element in : kElements) {
      for (const Element out : kElements) {
        for (const bool backward : {false, true}) {
          SCOPED_TRACE(shape.head_dim);
          const RotaryCase c = MakeRotary(shape, in);
          const std::vector<float> got = Rotated(c, c.x, in, out, backward);
          ExpectClose(got, RotatedOnCpu(c, backward), ExpTolerance(out), 1);
          EXPECT_EQ(Rotated(c, c.x, in, out, backward, /*lead=*/1), got);
        }
      }
    }
  }
}

TEST(RotaryKernel, MayTurnInPlace) {
  for (const Element element : kElements) {
    const RotaryCase c = MakeRotary({5, 9, 64}, element);
    const ElementArray x(element, c.x);
    const DeviceArray<float> cosine(c.cosine), sine(c.sine);
    RunRotary({.in = x.data(),
               .cosine = cosine.data(),
               .sine = sine.data(),
               .rows = 5,
               .heads = 9,
               .head_dim = 64,
               .out = x.data(),
               .in_element = element,
               .out_element = element},
              nullptr);
    EXPECT_EQ(x.Read(), Rotated(c, c.x, element, element, false));
  }
}

constexpr size_t kCounts[] = {1, 7, 8, 1000, 3 * 2048 + 5};

std::vector<float> GatesOf(size_t count) {  // gates whose e^-gate overflows and vanishes among them
  std::vector<float> gates = Normal(count, 1, 3);
  for (size_t i = 0; i < count; i += 5) gates[i] = i % 2 == 0 ? 100.0f : -100.0f;
  return gates;
}

std::vector<float> SwiGluOf(const std::vector<float>& gate, const std::vector<float>& up,
                            Element in, Element out, size_t lead = 0) {
  const ElementArray d_gate(in, gate, lead), d_up(in, up, lead), d_out(out, gate.size(), lead);
  RunSwiGlu({.gate = d_gate.data(),
             .up = d_up.data(),
             .count = static_cast<int64_t>(gate.size()),
             .out = d_out.data(),
             .in_element = in,
             .out_element = out},
            nullptr);
  return d_out.Read();
}

TEST(SwiGluKernel, GivesTheCpusProducts) {
  for (const size_t count : kCounts) {
    for (const Element in : kElements) {
      for (const Element out : kElements) {
        SCOPED_TRACE(count);
        const std::vector<float> gate = Stored(in, GatesOf(count));
        const std::vector<float> up = Stored(in, Normal(count, 2));
        std::vector<float> want(count);
        Cpu().swiglu(gate.data(), up.data(), static_cast<int64_t>(count), want.data());
        const std::vector<float> got = SwiGluOf(gate, up, in, out);
        ExpectClose(got, want, ExpTolerance(out));
        EXPECT_EQ(SwiGluOf(gate, up, in, out, /*lead=*/3), got);
      }
    }
  }
}

struct GateUp {
  std::vector<float> gate, up;
};

GateUp GradsOf(const std::vector<float>& out_grad, const GateUp& x, Element grad, Element in,
               size_t lead = 0) {
  const ElementArray d_grad(grad, out_grad, lead), gate(in, x.gate, lead), up(in, x.up, lead);
  RunSwiGluBackward({.out_grad = d_grad.data(),
                     .gate = gate.data(),
                     .up = up.data(),
                     .count = static_cast<int64_t>(out_grad.size()),
                     .out_grad_element = grad,
                     .in_element = in},
                    nullptr);
  return {gate.Read(), up.Read()};
}

TEST(SwiGluBackwardKernel, GivesTheGradientAtAGateOfZero) {
  // sigmoid(0) = 1/2 and silu(0) = 0: out = gate sigmoid(gate) up has d/dgate = up / 2, d/dup = 0.
  const GateUp got = GradsOf({3}, {{0}, {4}}, Element::kFp32, Element::kFp32);
  EXPECT_EQ(got.gate, std::vector<float>{6});
  EXPECT_EQ(got.up, std::vector<float>{0});
}

TEST(SwiGluBackwardKernel, GivesTheCpusGradients) {
  for (const size_t count : kCounts) {
    for (const Element grad : kElements) {
      for (const Element in : kElements) {
        SCOPED_TRACE(count);
        const std::vector<float> out_grad = Stored(grad, Normal(count, 3));
        const GateUp x = {Stored(in, GatesOf(count)), Stored(in, Normal(count, 2))};
        GateUp want = x;
        trainer::SwiGluBackward(out_grad.data(), static_cast<int64_t>(count), want.gate.data(),
                                want.up.data());
        const GateUp got = GradsOf(out_grad, x, grad, in);
        ExpectClose(got.gate, want.gate, ExpTolerance(in));
        ExpectClose(got.up, want.up, ExpTolerance(in));
        const GateUp moved = GradsOf(out_grad, x, grad, in, /*lead=*/1);
        EXPECT_EQ(moved.gate, got.gate);
        EXPECT_EQ(moved.up, got.up);
      }
    }
  }
}

}  // namespace
}  // namespace tandem::trainer::cuda
