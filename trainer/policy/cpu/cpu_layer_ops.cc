#include "trainer/policy/cpu/cpu_layer_ops.h"

#include <ATen/Parallel.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "common/model/forward_kernels.h"
#include "common/model/token_distribution.h"
#include "common/tensor/instruction_set.h"
#include "common/tensor/linear.h"
#include "trainer/policy/cpu/attention_kernel.h"
#include "trainer/policy/cpu/exact_ops.h"
#include "trainer/policy/cpu/layer_kernels.h"
#include "trainer/policy/cpu/vector_math.h"

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

// MKL is the faster one for a transposed fp32 product, and adds to the gradient as it goes, where it
// uses the widest vectors that the processor has: AVX-512 on Intel's processors alone.
bool UseMklForWeightGrads() {
#if defined(__x86_64__)
  static const bool widest =
      __builtin_cpu_is("intel") != 0 || __builtin_cpu_supports("avx512f") == 0;
  return widest;
#else
  return false;
#endif
}

// grad [out, in] += y_grad^T x, both in the dtype the layer computes in.
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

float* Data(const at::Tensor& x) { return x.data_ptr<float>(); }

// logits -> scale * softmax, in place.
TANDEM_VECTOR_CLONES
void ScaledSoftmax(float* logits, int64_t count, float inverse_temperature, float lse,
                   float scale) {
#pragma omp simd
  for (int64_t v = 0; v < count; ++v) {
    logits[v] = scale * VectorExp(logits[v] * inverse_temperature - lse);
  }
}

bool HasSupport(Supports support, int64_t row) { return !support.empty() && !support[row].empty(); }

// The same over some ids; 0 elsewhere.
void SoftmaxOver(float* logits, int64_t count, std::span<const int32_t> ids,
                 float inverse_temperature, float lse, float scale) {
  std::vector<float> values;
  for (const int32_t id : ids) {
    values.push_back(scale * std::exp(logits[id] * inverse_temperature - lse));
  }
  std::fill_n(logits, count, 0.0f);
  for (size_t i = 0; i < ids.size(); ++i) logits[ids[i]] = values[i];
}

// d H / d logit_v = -p_v (log p_v + H) / temperature, added to the gradient of the log-prob; `slope`
// is the gradient by H, over the temperature. A logit of -inf has p = 0 and no gradient.
struct RowEntropy {
  float entropy, slope;
  float GradOf(float p, float log_p) const {
    return -slope * p * ((log_p < -87.0f ? -87.0f : log_p) + entropy);
  }
};

TANDEM_VECTOR_CLONES
void ScaledSoftmaxAndEntropy(float* logits, int64_t count, float inverse_temperature, float lse,
                             float scale, RowEntropy of_row) {
#pragma omp simd
  for (int64_t v = 0; v < count; ++v) {
    const float log_p = logits[v] * inverse_temperature - lse, p = VectorExp(log_p);
    logits[v] = scale * p + of_row.GradOf(p, log_p);
  }
}

void SoftmaxAndEntropyOver(float* logits, int64_t count, std::span<const int32_t> ids,
                           float inverse_temperature, float lse, float scale, RowEntropy of_row) {
  std::vector<float> values;
  for (const int32_t id : ids) {
    const float log_p = logits[id] * inverse_temperature - lse, p = std::exp(log_p);
    values.push_back(scale * p + of_row.GradOf(p, log_p));
  }
  std::fill_n(logits, count, 0.0f);
  for (size_t i = 0; i < ids.size(); ++i) logits[ids[i]] = values[i];
}

// As the server divides: in fp32.
float InverseTemperature(double temperature) { return 1.0f / static_cast<float>(temperature); }

}  // namespace

at::Tensor CpuLayerOps::Embed(const at::Tensor& table, std::span<const int32_t> ids) const {
  const int64_t width = table.size(1);
  at::Tensor hidden = at::empty({static_cast<int64_t>(ids.size()), width}, at::kFloat);
  const float* const from = Data(table);
  float* out = Data(hidden);
  for (const int32_t id : ids) out = std::copy_n(from + id * width, width, out);
  return hidden;
}

// In token order, so that repeated ids add up the same way each time.
void CpuLayerOps::EmbedBackward(const at::Tensor& hidden_grad, std::span<const int32_t> ids,
                                const at::Tensor& table_grad) const {
  const int64_t width = table_grad.size(1);
  const float* grad = Data(hidden_grad);
  for (const int32_t id : ids) {
    float* entry = Data(table_grad) + id * width;
    for (int64_t e = 0; e < width; ++e) entry[e] += grad[e];
    grad += width;
  }
}

at::Tensor CpuLayerOps::TakeRows(const at::Tensor& rows, std::span<const int64_t> indices) const {
  const int64_t width = rows.size(1);
  at::Tensor result = at::empty({static_cast<int64_t>(indices.size()), width}, rows.options());
  float* to = Data(result);
  for (const int64_t index : indices) to = std::copy_n(Data(rows) + index * width, width, to);
  return result;
}

// Rows add up in the order of `indices`.
at::Tensor CpuLayerOps::SpreadRows(const at::Tensor& values, std::span<const int64_t> indices,
                                   int64_t num_rows) const {
  const int64_t width = values.size(1);
  at::Tensor result = at::zeros({num_rows, width}, values.options());
  const float* from = Data(values);
  for (const int64_t index : indices) {
    float* to = Data(result) + index * width;
    for (int64_t e = 0; e < width; ++e) to[e] += from[e];
    from += width;
  }
  return result;
}

at::Tensor CpuLayerOps::Linear(const LinearLayer& layer, const at::Tensor& x) const {
  at::Tensor y = layer.exact != nullptr
                     ? ExactProduct(*layer.exact, x, layer.exact_inputs)
                     : As(LinearForward(Operand(layer, layer.weight, x), layer.weight), at::kFloat);
  if (layer.bias.defined()) y.add_(layer.bias);
  return y;
}

at::Tensor CpuLayerOps::LinearBackward(const LinearLayer& layer, const at::Tensor& x,
                                       const at::Tensor& y_grad) const {
  const at::Tensor& weight = layer.backward_weight.defined() ? layer.backward_weight : layer.weight;
  const at::Tensor y_grad_operand = Operand(layer, weight, y_grad);
  if (layer.weight_grad.defined()) {
    AddWeightGrad(y_grad_operand, Operand(layer, weight, x), layer.weight_grad);
  }
  if (layer.bias.defined()) layer.bias_grad.add_(y_grad.sum(0));
  return As(LinearForward(y_grad_operand, weight.t()), at::kFloat);
}

Normed CpuLayerOps::RmsNorm(const NormLayer& layer, const at::Tensor& x, double eps) const {
  const int64_t width = layer.weight.size(0), rows = x.numel() / width;
  Normed result{at::empty_like(x), at::empty({rows}, x.options())};
  const float *in = Data(x), *weight = Data(layer.weight);
  float *out = Data(result.value), *rstd = Data(result.rstd);
  const ForwardKernels& kernels = ForwardKernelsFor(ActiveInstructionSet());
  at::parallel_for(0, rows, kRowGrain, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      rstd[r] =
          kernels.rms_norm(in + r * width, weight, width, static_cast<float>(eps), out + r * width);
    }
  });
  return result;
}

void CpuLayerOps::RmsNormBackward(const NormLayer& layer, const at::Tensor& x,
                                  const at::Tensor& rstd, const at::Tensor& value_grad,
                                  at::Tensor& x_grad) const {
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

RotaryTable CpuLayerOps::MakeRotaryTable(std::span<const int32_t> positions,
                                         const RotaryEmbedding& embedding, bool interleaved) const {
  const auto rows = static_cast<int64_t>(positions.size());
  const int64_t half = embedding.rotated() / 2;
  RotaryTable table{.cosine = at::empty({rows, half}, at::kFloat),
                    .sine = at::empty({rows, half}, at::kFloat),
                    .minus_sine = at::empty({rows, half}, at::kFloat),
                    .interleaved = interleaved};
  float *cosine = Data(table.cosine), *sine = Data(table.sine);
  float* minus_sine = Data(table.minus_sine);
  at::parallel_for(0, rows, kRowGrain, [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      for (int64_t i = 0; i < half; ++i) {
        const float angle = static_cast<float>(positions[t]) * embedding.inverse_frequencies[i];
        cosine[t * half + i] = std::cos(angle) * embedding.scale;
        sine[t * half + i] = std::sin(angle) * embedding.scale;
        minus_sine[t * half + i] = -sine[t * half + i];
      }
    }
  });
  return table;
}

void CpuLayerOps::Rotate(at::Tensor& x, int64_t num_heads, const RotaryTable& table,
                         bool backward) const {
  const int64_t half = table.cosine.size(1), width = x.size(1), d = width / num_heads;
  const RotationForm form = {2 * half, table.interleaved};
  float* data = Data(x);
  const float *cosine = Data(table.cosine), *sine = Data(backward ? table.minus_sine : table.sine);
  const ForwardKernels& kernels = ForwardKernelsFor(ActiveInstructionSet());
  at::parallel_for(0, table.cosine.size(0), kRowGrain, [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      for (int64_t h = 0; h < num_heads; ++h) {
        kernels.rotate(data + t * width + h * d, cosine + t * half, sine + t * half, d, form, 1.0f);
      }
    }
  });
}

void CpuLayerOps::SoftCap(at::Tensor& x, float cap) const {
  float* data = Data(x);
  const ForwardKernels& kernels = ForwardKernelsFor(ActiveInstructionSet());
  const int64_t width = x.size(-1);
  at::parallel_for(0, x.numel() / width, 1, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) kernels.soft_cap(data + r * width, width, cap);
  });
}

at::Tensor CpuLayerOps::GatedUnit(Activation activation, const at::Tensor& gate,
                                  const at::Tensor& up) const {
  at::Tensor out = at::empty_like(gate);
  const float *g = Data(gate), *u = Data(up);
  float* o = Data(out);
  const auto gated_unit = ForwardKernelsFor(ActiveInstructionSet()).GatedUnit(activation);
  at::parallel_for(0, gate.numel(), kElementGrain, [&](int64_t begin, int64_t end) {
    gated_unit(g + begin, u + begin, end - begin, o + begin);
  });
  return out;
}

void CpuLayerOps::GatedUnitBackward(Activation activation, const at::Tensor& out_grad,
                                    at::Tensor& gate, at::Tensor& up) const {
  const float* d = Data(out_grad);
  float *g = Data(gate), *u = Data(up);
  at::parallel_for(0, gate.numel(), kElementGrain, [&](int64_t begin, int64_t end) {
    const auto backward = activation == Activation::kSilu ? SwiGluBackward : GeGluBackward;
    backward(d + begin, end - begin, g + begin, u + begin);
  });
}

Attention CpuLayerOps::Attend(const at::Tensor& q, at::Tensor& k, at::Tensor& v,
                              const AttentionPlan& plan, const AttentionForm& form) const {
  Attention result{at::empty_like(q), at::empty({q.size(0), form.num_heads}, q.options())};
  const AttentionForwardArgs args{Data(q), Data(k), Data(v), Data(result.out), Data(result.lse)};
  const auto parts = SplitByPrompt(plan.segments);
  const int64_t tasks = static_cast<int64_t>(parts.size()) * form.num_kv_heads;
  at::parallel_for(0, tasks, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      AttendForward(parts[i / form.num_kv_heads], i % form.num_kv_heads, form, args);
    }
  });
  return result;
}

AttentionGrads CpuLayerOps::AttendBackward(const at::Tensor& q, const at::Tensor& k,
                                           const at::Tensor& v, const Attention& attention,
                                           const at::Tensor& out_grad, const AttentionPlan& plan,
                                           const AttentionForm& form) const {
  AttentionGrads grads{at::empty_like(q), at::empty_like(k), at::empty_like(v)};
  const AttentionBackwardArgs args{
      Data(q),        Data(k),       Data(v),       Data(attention.out), Data(attention.lse),
      Data(out_grad), Data(grads.q), Data(grads.k), Data(grads.v)};
  const auto parts = SplitByPrompt(plan.segments);
  const int64_t tasks = static_cast<int64_t>(parts.size()) * form.num_kv_heads;
  at::parallel_for(0, tasks, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      trainer::AttendBackward(parts[i / form.num_kv_heads], i % form.num_kv_heads, form, args);
    }
  });
  return grads;
}

Attention ExactCpuLayerOps::Attend(const at::Tensor& q, at::Tensor& k, at::Tensor& v,
                                   const AttentionPlan& plan, const AttentionForm& form) const {
  return ExactAttention(q, k, v, plan.segments, form, kv_);
}

RowLogprobs CpuLayerOps::Logprobs(const at::Tensor& logits, std::span<const int64_t> tokens,
                                  double temperature, Supports support) const {
  const int64_t rows = logits.size(0), vocabulary = logits.size(1);
  const float inverse_temperature = InverseTemperature(temperature);
  RowLogprobs result{at::empty({rows}), at::empty({rows}), at::empty({rows})};
  float *logprobs = Data(result.logprobs), *entropies = Data(result.entropies);
  float *lse = Data(result.lse), *data = Data(logits);
  const InstructionSet set = ActiveInstructionSet();
  at::parallel_for(0, rows, 1, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      const std::span<const float> row(data + r * vocabulary, static_cast<size_t>(vocabulary));
      TokenDistribution d = DistributionOf(set, row, inverse_temperature);
      if (HasSupport(support, r)) {
        d = DistributionOver(row, support[r], inverse_temperature, d.largest);
      }
      logprobs[r] = d.LogProb(row[tokens[r]]);
      entropies[r] = d.entropy();
      lse[r] =
          static_cast<float>(static_cast<double>(d.largest) * inverse_temperature + d.log_mass);
    }
  });
  return result;
}

// d log p(a) / d logit_v = ([v = a] - p_v) / temperature
at::Tensor CpuLayerOps::LogprobsBackward(at::Tensor logits, std::span<const int64_t> tokens,
                                         double temperature, Supports support,
                                         const at::Tensor& lse, const at::Tensor& logprobs_grad,
                                         const EntropyGrad& entropy) const {
  const int64_t vocabulary = logits.size(1);
  const float inverse_temperature = InverseTemperature(temperature);
  const float *grad = Data(logprobs_grad), *of_rows = Data(lse);
  float* const data = Data(logits);
  at::parallel_for(0, logits.size(0), 1, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      const float scale = grad[r] * inverse_temperature;
      float* row = data + r * vocabulary;
      if (entropy.grad.defined()) {
        const RowEntropy of_row = {Data(entropy.entropies)[r],
                                   Data(entropy.grad)[r] * inverse_temperature};
        if (HasSupport(support, r)) {
          SoftmaxAndEntropyOver(row, vocabulary, support[r], inverse_temperature, of_rows[r],
                                -scale, of_row);
        } else {
          ScaledSoftmaxAndEntropy(row, vocabulary, inverse_temperature, of_rows[r], -scale, of_row);
        }
      } else if (HasSupport(support, r)) {
        SoftmaxOver(row, vocabulary, support[r], inverse_temperature, of_rows[r], -scale);
      } else {
        ScaledSoftmax(row, vocabulary, inverse_temperature, of_rows[r], -scale);
      }
      row[tokens[r]] += scale;
    }
  });
  return logits;
}

at::Tensor CpuLayerOps::CastToBf16(const std::string& name, const at::Tensor& master,
                                   Rounding rounding) const {
  at::Tensor cast = at::empty_like(master, at::kBFloat16);
  trainer::CastToBf16(name, /*first=*/0, Data(master), master.numel(), rounding,
                      static_cast<uint16_t*>(cast.data_ptr()));
  return cast;
}

}  // namespace tandem::trainer
