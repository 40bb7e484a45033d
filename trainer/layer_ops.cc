#include "trainer/layer_ops.h"

#include <ATen/Parallel.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/mm.h>

#include <algorithm>
#include <cmath>

#include "common/model/forward_kernels.h"
#include "common/tensor/instruction_set.h"
#include "common/tensor/linear.h"
#include "trainer/attention_kernel.h"
#include "trainer/exact_ops.h"
#include "trainer/layer_kernels.h"

namespace tandem::trainer {
namespace {

constexpr int64_t kRowGrain = 16;         // rows of a norm or a rotation per task
constexpr int64_t kColumnBlock = 64;      // columns of a norm's weight gradient per task
constexpr int64_t kElementGrain = 16384;  // elements of an activation function per task

at::Tensor As(const at::Tensor& x, at::ScalarType dtype) {
  return x.scalar_type() == dtype ? x : x.to(dtype);
}

// What a product of the layer with `weight` takes in: x rounded as the weight's dtype wants it.
at::Tensor Operand(const LinearLayer& layer, const at::Tensor& weight, const at::Tensor& x) {
  if (layer.round_inputs) return x.to(at::kBFloat16).to(at::kFloat);
  return As(x, weight.scalar_type());
}

// MKL is the faster one for a transposed fp32 product on Intel's processors, oneDNN on others.
bool UseMklForWeightGrads() {
#if defined(__x86_64__)
  static const bool intel = __builtin_cpu_is("intel") != 0;
  return intel;
#else
  return false;
#endif
}

float* Data(const at::Tensor& x) { return x.data_ptr<float>(); }

}  // namespace

at::Tensor Linear(const LinearLayer& layer, const at::Tensor& x) {
  at::Tensor y = layer.exact != nullptr
                     ? ExactProduct(*layer.exact, x, layer.exact_rounds_inputs)
                     : As(LinearForward(Operand(layer, layer.weight, x), layer.weight), at::kFloat);
  if (layer.bias.defined()) y.add_(layer.bias);
  return y;
}

at::Tensor LinearBackward(const LinearLayer& layer, const at::Tensor& x, const at::Tensor& y_grad) {
  const at::Tensor& weight =
      layer.backward_weight.defined() ? layer.backward_weight : layer.weight;
  const at::Tensor y_grad_operand = Operand(layer, weight, y_grad);
  AddWeightGrad(y_grad_operand, Operand(layer, weight, x), layer.weight_grad);
  if (layer.bias.defined()) layer.bias_grad.add_(y_grad.sum(0));
  return As(LinearForward(y_grad_operand, weight.t()), at::kFloat);
}

void AddWeightGrad(const at::Tensor& y_grad, const at::Tensor& x, const at::Tensor& grad) {
  if (y_grad.scalar_type() != at::kFloat) {
    grad.add_(at::mm(y_grad.t(), x));
  } else if (UseMklForWeightGrads()) {
    at::Tensor result = grad;
    at::addmm_out(result, grad, y_grad.t(), x);
  } else {
    grad.add_(LinearForward(y_grad.t().contiguous(), x.t()));
  }
}

Normed RmsNorm(const NormLayer& layer, const at::Tensor& x, double eps) {
  const int64_t width = layer.weight.size(0), rows = x.numel() / width;
  Normed result{at::empty_like(x), at::empty({rows}, x.options())};
  const float *in = Data(x), *weight = Data(layer.weight);
  float *out = Data(result.value), *rstd = Data(result.rstd);
  const ForwardKernels& kernels = ForwardKernelsFor(ActiveInstructionSet());
  at::parallel_for(0, rows, kRowGrain, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      rstd[r] = kernels.rms_norm(in + r * width, weight, width, static_cast<float>(eps),
                                 out + r * width);
    }
  });
  return result;
}

at::Tensor RmsNormValue(const NormLayer& layer, const at::Tensor& x, double eps) {
  return RmsNorm(layer, x, eps).value;
}

void RmsNormBackward(const NormLayer& layer, const at::Tensor& x, const at::Tensor& rstd,
                     const at::Tensor& value_grad, at::Tensor& x_grad) {
  const int64_t width = layer.weight.size(0), rows = x.numel() / width;
  const bool accumulate = x_grad.defined();
  if (!accumulate) x_grad = at::empty_like(x);
  const float *grad = Data(value_grad), *in = Data(x), *scale = Data(rstd);
  const float* weight = Data(layer.weight);
  float *in_grad = Data(x_grad), *weight_grad = Data(layer.weight_grad);
  at::parallel_for(0, rows, kRowGrain, [&](int64_t begin, int64_t end) {
    RmsNormRowsBackward(grad + begin * width, in + begin * width, weight, scale + begin,
                        end - begin, width, accumulate, in_grad + begin * width);
  });
  const int64_t num_blocks = (width + kColumnBlock - 1) / kColumnBlock;
  at::parallel_for(0, num_blocks, 1, [&](int64_t begin, int64_t end) {
    RmsNormWeightGrad(grad, in, scale, rows, width, begin * kColumnBlock,
                      std::min(end * kColumnBlock, width), weight_grad);
  });
}

RotaryTable MakeRotaryTable(std::span<const int32_t> positions,
                            std::span<const float> inverse_frequencies) {
  const auto rows = static_cast<int64_t>(positions.size());
  const auto half = static_cast<int64_t>(inverse_frequencies.size());
  RotaryTable table{at::empty({rows, half}, at::kFloat), at::empty({rows, half}, at::kFloat),
                    at::empty({rows, half}, at::kFloat)};
  float *cosine = Data(table.cosine), *sine = Data(table.sine);
  float* minus_sine = Data(table.minus_sine);
  at::parallel_for(0, rows, kRowGrain, [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      for (int64_t i = 0; i < half; ++i) {
        const float angle = static_cast<float>(positions[t]) * inverse_frequencies[i];
        cosine[t * half + i] = std::cos(angle);
        sine[t * half + i] = std::sin(angle);
        minus_sine[t * half + i] = -sine[t * half + i];
      }
    }
  });
  return table;
}

void Rotate(at::Tensor& x, int64_t num_heads, const RotaryTable& table, bool backward) {
  const int64_t half = table.cosine.size(1), width = num_heads * 2 * half;
  float* data = Data(x);
  const float *cosine = Data(table.cosine), *sine = Data(backward ? table.minus_sine : table.sine);
  const ForwardKernels& kernels = ForwardKernelsFor(ActiveInstructionSet());
  at::parallel_for(0, table.cosine.size(0), kRowGrain, [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      for (int64_t h = 0; h < num_heads; ++h) {
        kernels.rotate(data + t * width + h * 2 * half, cosine + t * half, sine + t * half,
                       2 * half, 1.0f);
      }
    }
  });
}

at::Tensor SwiGluValue(const at::Tensor& gate, const at::Tensor& up) {
  at::Tensor out = at::empty_like(gate);
  const float *g = Data(gate), *u = Data(up);
  float* o = Data(out);
  const ForwardKernels& kernels = ForwardKernelsFor(ActiveInstructionSet());
  at::parallel_for(0, gate.numel(), kElementGrain, [&](int64_t begin, int64_t end) {
    kernels.swiglu(g + begin, u + begin, end - begin, o + begin);
  });
  return out;
}

void SwiGluGrad(const at::Tensor& out_grad, at::Tensor& gate, at::Tensor& up) {
  const float* d = Data(out_grad);
  float *g = Data(gate), *u = Data(up);
  at::parallel_for(0, gate.numel(), kElementGrain, [&](int64_t begin, int64_t end) {
    SwiGluBackward(d + begin, end - begin, g + begin, u + begin);
  });
}

Attention SegmentAttention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                           std::span<const Segment> segments, const HeadCounts& heads) {
  Attention result{at::empty_like(q), at::empty({q.size(0), heads.num_heads}, q.options())};
  const AttentionShape shape{heads.num_heads, heads.num_kv_heads, heads.head_dim,
                             1.0f / std::sqrt(static_cast<float>(heads.head_dim))};
  const AttentionForwardArgs args{Data(q), Data(k), Data(v), Data(result.out), Data(result.lse)};
  const auto parts = SplitByPrompt(segments);
  const int64_t tasks = static_cast<int64_t>(parts.size()) * heads.num_kv_heads;
  at::parallel_for(0, tasks, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      AttendForward(parts[i / heads.num_kv_heads], i % heads.num_kv_heads, shape, args);
    }
  });
  return result;
}

AttentionGrads SegmentAttentionBackward(const at::Tensor& q, const at::Tensor& k,
                                        const at::Tensor& v, const Attention& attention,
                                        const at::Tensor& out_grad,
                                        std::span<const Segment> segments,
                                        const HeadCounts& heads) {
  AttentionGrads grads{at::empty_like(q), at::empty_like(k), at::empty_like(v)};
  const AttentionShape shape{heads.num_heads, heads.num_kv_heads, heads.head_dim,
                             1.0f / std::sqrt(static_cast<float>(heads.head_dim))};
  const AttentionBackwardArgs args{
      Data(q),        Data(k),       Data(v),       Data(attention.out), Data(attention.lse),
      Data(out_grad), Data(grads.q), Data(grads.k), Data(grads.v)};
  const auto parts = SplitByPrompt(segments);
  const int64_t tasks = static_cast<int64_t>(parts.size()) * heads.num_kv_heads;
  at::parallel_for(0, tasks, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      AttendBackward(parts[i / heads.num_kv_heads], i % heads.num_kv_heads, shape, args);
    }
  });
  return grads;
}

}  // namespace tandem::trainer
