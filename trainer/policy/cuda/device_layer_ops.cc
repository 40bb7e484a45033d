#include "trainer/policy/cuda/device_layer_ops.h"

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>

#include <cstring>
#include <vector>

#include "common/tensor/bf16_rounding.h"
#include "trainer/policy/cuda/launch.h"
#include "trainer/policy/cuda/run_attention.h"
#include "trainer/policy/dense_attention.h"

namespace tandem::trainer {
namespace {

at::Tensor As(const at::Tensor& x, at::ScalarType type) { return x.to(type); }
at::Tensor Widened(const at::Tensor& x) { return x.to(at::kFloat); }

// a [M, K] times b [K, N] in fp32, of either dtype. The CPU has no product of bfloat16 with fp32
// sums.
at::Tensor ProductInFp32(const at::Tensor& a, const at::Tensor& b) {
  if (a.scalar_type() == at::kFloat || a.is_cpu()) return at::mm(Widened(a), Widened(b));
  return at::mm(a, b, at::kFloat);
}

// sum [M, N] float32 += a b, without a matrix between.
void AddProduct(const at::Tensor& a, const at::Tensor& b, at::Tensor sum) {
  if (a.scalar_type() == at::kFloat || a.is_cpu()) {
    sum.addmm_(Widened(a), Widened(b));
  } else {
    at::addmm_out(sum, sum, a, b, at::kFloat, 1, 1);
  }
}

at::Tensor ByHeads(const at::Tensor& x, const AttentionForm& form) {
  return x.view({x.size(0), -1, form.head_dim});
}

// Whether attention has what flash attention does not.
bool IsDense(const AttentionForm& form) { return form.window > 0 || form.softcap > 0; }

void AppendRange(int64_t begin, int64_t end, std::vector<int64_t>& rows) {
  for (int64_t t = begin; t < end; ++t) rows.push_back(t);
}

// of[t] += with[t] as softmax over the keys of both: `of` becomes the whole.
Attention Merged(const Attention& of, const Attention& with) {
  const at::Tensor lse = at::logaddexp(of.lse, with.lse);
  const auto share = [&](const Attention& part) {
    return (part.lse - lse).exp_().t().unsqueeze(2) * part.out;
  };
  return {share(of).add_(share(with)), lse};
}

}  // namespace

DeviceAttentionPlan::DeviceAttentionPlan(std::span<const Segment> of, const at::Device& device)
    : AttentionPlan(of) {
  std::vector<int32_t> segment_ends, completion_ends, prompt_ends;
  std::vector<int64_t> of_completions, of_prompts;
  for (const Segment& segment : segments) {
    TORCH_CHECK(segment.begin == (segment_ends.empty() ? 0 : segment_ends.back()),
                "segments of a packed row lie one after the other");
    segment_ends.push_back(static_cast<int32_t>(segment.end));
  }
  for (const auto& part : SplitByPrompt(segments)) {
    if (part.size() == 1) continue;
    AppendRange(part[1].begin, part.back().end, of_completions);
    AppendRange(part[0].begin, part[0].end, of_prompts);
    completion_ends.push_back(static_cast<int32_t>(of_completions.size()));
    prompt_ends.push_back(static_cast<int32_t>(of_prompts.size()));
  }
  own = AttentionRuns(segment_ends, segment_ends, /*causal=*/true, device);
  if (of_completions.empty()) return;
  over_prompts = AttentionRuns(completion_ends, prompt_ends, /*causal=*/false, device);
  completions.emplace(of_completions, device);
  prompts.emplace(of_prompts, device);
}

template <typename T>
at::Tensor DeviceLayerOps::Upload(std::span<const T> values, at::ScalarType type) const {
  at::Tensor host = at::empty({static_cast<int64_t>(values.size())}, type);
  TORCH_CHECK(host.nbytes() == values.size_bytes());
  std::memcpy(host.data_ptr(), values.data(), values.size_bytes());
  return host.to(device_);
}

template at::Tensor DeviceLayerOps::Upload(std::span<const int32_t>, at::ScalarType) const;
template at::Tensor DeviceLayerOps::Upload(std::span<const int64_t>, at::ScalarType) const;
template at::Tensor DeviceLayerOps::Upload(std::span<const float>, at::ScalarType) const;

at::Tensor DeviceLayerOps::Embed(const at::Tensor& table, std::span<const int32_t> ids) const {
  return table.index_select(0, Upload(ids, at::kInt));
}

// Accumulating index_put sorts, and adds in order.
void DeviceLayerOps::EmbedBackward(const at::Tensor& hidden_grad, std::span<const int32_t> ids,
                                   const at::Tensor& table_grad) const {
  table_grad.index_put_({Upload(ids, at::kInt).to(at::kLong)}, hidden_grad, /*accumulate=*/true);
}

at::Tensor DeviceLayerOps::TakeRows(const at::Tensor& rows,
                                    std::span<const int64_t> indices) const {
  return rows.index_select(0, Upload(indices, at::kLong));
}

at::Tensor DeviceLayerOps::SpreadRows(const at::Tensor& values, std::span<const int64_t> indices,
                                      int64_t num_rows) const {
  at::Tensor result = at::zeros({num_rows, values.size(1)}, values.options());
  return result.index_put_({Upload(indices, at::kLong)}, values, /*accumulate=*/true);
}

at::Tensor DeviceLayerOps::Linear(const LinearLayer& layer, const at::Tensor& x) const {
  const at::ScalarType type = layer.weight.scalar_type();
  if (!layer.bias.defined()) return at::mm(As(x, type), layer.weight.t());
  return at::addmm(As(layer.bias, type), As(x, type), layer.weight.t());
}

at::Tensor DeviceLayerOps::LinearBackward(const LinearLayer& layer, const at::Tensor& x,
                                          const at::Tensor& y_grad) const {
  const at::ScalarType type = layer.weight.scalar_type();
  const at::Tensor operand = As(y_grad, type);
  if (layer.weight_grad.defined()) {
    AddProduct(operand.t(), As(x, type), layer.weight_grad);
  }
  if (layer.bias.defined()) layer.bias_grad.add_(y_grad.sum(0, /*keepdim=*/false, at::kFloat));
  return at::mm(operand, layer.weight);
}

Normed DeviceLayerOps::RmsNorm(const NormLayer& layer, const at::Tensor& x, double eps) const {
  const int64_t width = layer.weight.size(0), rows = x.numel() / width;
  const at::ScalarType type = layer.in_fp32 ? at::kFloat : type_;
  Normed result{at::empty(x.sizes(), On(type)), at::empty({rows}, On(at::kFloat))};
  cuda::RunNorm({.x = x.const_data_ptr(),
                 .weight = layer.weight.const_data_ptr<float>(),
                 .eps = static_cast<float>(eps),
                 .rows = rows,
                 .width = width,
                 .value = result.value.data_ptr(),
                 .rstd = result.rstd.data_ptr<float>(),
                 .x_element = ElementOf(x),
                 .value_element = ElementOf(result.value)},
                CurrentStream());
  CheckLaunch("norm");
  return result;
}

void DeviceLayerOps::RmsNormBackward(const NormLayer& layer, const at::Tensor& x,
                                     const at::Tensor& rstd, const at::Tensor& value_grad,
                                     at::Tensor& x_grad) const {
  const int64_t width = layer.weight.size(0), rows = x.numel() / width;
  const bool accumulate = x_grad.defined();
  if (!accumulate) x_grad = at::empty_like(x);
  at::Tensor scratch = at::empty({cuda::NormScratch(rows, width)}, On(at::kFloat));
  cuda::RunNormBackward({.value_grad = value_grad.const_data_ptr(),
                         .x = x.const_data_ptr(),
                         .weight = layer.weight.const_data_ptr<float>(),
                         .rstd = rstd.const_data_ptr<float>(),
                         .rows = rows,
                         .width = width,
                         .accumulate = accumulate,
                         .x_grad = x_grad.data_ptr(),
                         .weight_grad = layer.weight_grad.data_ptr<float>(),
                         .scratch = scratch.data_ptr<float>(),
                         .value_grad_element = ElementOf(value_grad),
                         .x_element = ElementOf(x),
                         .x_grad_element = ElementOf(x_grad)},
                        CurrentStream());
  CheckLaunch("norm, backward");
}

RotaryTable DeviceLayerOps::MakeRotaryTable(std::span<const int32_t> positions,
                                            const RotaryEmbedding& embedding,
                                            bool interleaved) const {
  const std::span<const float> frequencies = embedding.inverse_frequencies;
  const at::Tensor angles =
      at::outer(Widened(Upload(positions, at::kInt)), Upload(frequencies, at::kFloat));
  RotaryTable table{.cosine = angles.cos(), .sine = angles.sin(), .interleaved = interleaved};
  if (embedding.scale == 1) return table;
  table.cosine.mul_(embedding.scale);
  table.sine.mul_(embedding.scale);
  return table;
}

namespace {

// A rotation that the kernel does not know: of a part of each head, or of neighbouring elements.
void RotateSlices(at::Tensor& x, int64_t num_heads, const RotaryTable& table, bool backward) {
  const int64_t half = table.cosine.size(1);
  const at::Tensor heads = x.view({x.size(0), num_heads, -1}).narrow(2, 0, 2 * half);
  const at::Tensor first =
      table.interleaved ? heads.slice(2, 0, 2 * half, 2) : heads.narrow(2, 0, half);
  const at::Tensor second =
      table.interleaved ? heads.slice(2, 1, 2 * half, 2) : heads.narrow(2, half, half);
  const at::Tensor cosine = table.cosine.unsqueeze(1);
  const at::Tensor sine = backward ? table.sine.neg().unsqueeze(1) : table.sine.unsqueeze(1);
  const at::Tensor a = first.to(at::kFloat), b = second.to(at::kFloat);
  const at::Tensor turned = a * cosine - b * sine;  // a and b may be views of the heads
  second.copy_(b * cosine + a * sine);
  first.copy_(turned);
}

}  // namespace

void DeviceLayerOps::Rotate(at::Tensor& x, int64_t num_heads, const RotaryTable& table,
                            bool backward) const {
  const int64_t rotated = 2 * table.cosine.size(1);
  if (table.interleaved || rotated * num_heads != x.size(1)) {
    return RotateSlices(x, num_heads, table, backward);
  }
  cuda::RunRotary({.in = x.const_data_ptr(),
                   .cosine = table.cosine.const_data_ptr<float>(),
                   .sine = table.sine.const_data_ptr<float>(),
                   .rows = x.size(0),
                   .heads = num_heads,
                   .head_dim = rotated,
                   .backward = backward,
                   .out = x.data_ptr(),
                   .in_element = ElementOf(x),
                   .out_element = ElementOf(x)},
                  CurrentStream());
  CheckLaunch("rotary");
}

at::Tensor DeviceLayerOps::GatedUnit(Activation activation, const at::Tensor& gate,
                                     const at::Tensor& up) const {
  if (activation == Activation::kGeluTanh) return at::gelu(gate, "tanh").mul_(up);
  at::Tensor out = at::empty_like(gate);
  cuda::RunSwiGlu({.gate = gate.const_data_ptr(),
                   .up = up.const_data_ptr(),
                   .count = gate.numel(),
                   .out = out.data_ptr(),
                   .in_element = ElementOf(gate),
                   .out_element = ElementOf(out)},
                  CurrentStream());
  CheckLaunch("SwiGLU");
  return out;
}

void DeviceLayerOps::GatedUnitBackward(Activation activation, const at::Tensor& out_grad,
                                       at::Tensor& gate, at::Tensor& up) const {
  if (activation == Activation::kGeluTanh) {
    const at::Tensor grad = As(out_grad, gate.scalar_type());
    const at::Tensor gated = at::gelu(gate, "tanh");
    gate.copy_(at::gelu_backward(grad * up, gate, "tanh"));
    up.copy_(gated.mul_(grad));
    return;
  }
  cuda::RunSwiGluBackward({.out_grad = out_grad.const_data_ptr(),
                           .gate = gate.data_ptr(),
                           .up = up.data_ptr(),
                           .count = gate.numel(),
                           .out_grad_element = ElementOf(out_grad),
                           .in_element = ElementOf(gate)},
                          CurrentStream());
  CheckLaunch("SwiGLU, backward");
}

void DeviceLayerOps::SoftCap(at::Tensor& x, float cap) const { x.div_(cap).tanh_().mul_(cap); }

std::shared_ptr<const AttentionPlan> DeviceLayerOps::PlanAttention(
    std::span<const Segment> segments) const {
  return std::make_shared<const DeviceAttentionPlan>(segments, device_);
}

Attention DeviceLayerOps::Attend(const at::Tensor& q, at::Tensor& k, at::Tensor& v,
                                 const AttentionPlan& plan, const AttentionForm& form) const {
  if (IsDense(form)) return DenseAttend(q, k, v, plan.segments, form);
  const auto& parts = static_cast<const DeviceAttentionPlan&>(plan);
  const at::Tensor queries = ByHeads(q, form), keys = ByHeads(k, form), values = ByHeads(v, form);
  Attention whole = AttendRuns(queries, keys, values, parts.own, form.scale);
  if (parts.completions.has_value()) {
    const TokenSelection &rows = *parts.completions, &prompts = *parts.prompts;
    const Attention over_prompts = AttendRuns(rows.Take(queries), prompts.Take(keys),
                                              prompts.Take(values), parts.over_prompts, form.scale);
    const Attention merged = Merged({rows.Take(whole.out), rows.Take(whole.lse, 1)}, over_prompts);
    rows.Put(As(merged.out, whole.out.scalar_type()), whole.out);
    rows.Put(merged.lse, whole.lse, 1);
  }
  return {whole.out.view(q.sizes()), whole.lse};
}

AttentionGrads DeviceLayerOps::AttendBackward(const at::Tensor& q, const at::Tensor& k,
                                              const at::Tensor& v, const Attention& attention,
                                              const at::Tensor& out_grad, const AttentionPlan& plan,
                                              const AttentionForm& form) const {
  if (IsDense(form)) {
    return DenseAttendBackward(out_grad, q, k, v, attention, plan.segments, form);
  }
  const auto& parts = static_cast<const DeviceAttentionPlan&>(plan);
  const at::Tensor queries = ByHeads(q, form), keys = ByHeads(k, form), values = ByHeads(v, form);
  const at::Tensor grad = ByHeads(out_grad, form), out = ByHeads(attention.out, form);
  AttentionGrads grads =
      AttendRunsBackward(grad, queries, keys, values, {out, attention.lse}, parts.own, form.scale);
  if (parts.completions.has_value()) {
    const TokenSelection &rows = *parts.completions, &prompts = *parts.prompts;
    const AttentionGrads over_prompts = AttendRunsBackward(
        rows.Take(grad), rows.Take(queries), prompts.Take(keys), prompts.Take(values),
        {rows.Take(out), rows.Take(attention.lse, 1)}, parts.over_prompts, form.scale);
    rows.Add(over_prompts.q, grads.q);
    prompts.Add(over_prompts.k, grads.k);
    prompts.Add(over_prompts.v, grads.v);
  }
  return {grads.q.view(q.sizes()), grads.k.view(k.sizes()), grads.v.view(v.sizes())};
}

at::Tensor DeviceLayerOps::Logits(const LinearLayer& head, const at::Tensor& hidden) const {
  const at::Tensor weight = head.weight.t();
  if (head.weight.scalar_type() == at::kFloat) return at::mm(hidden, weight);
  const at::Tensor first = As(hidden, at::kBFloat16);
  const at::Tensor rest = As(hidden - first, at::kBFloat16);
  at::Tensor logits = ProductInFp32(first, weight);
  AddProduct(rest, weight, logits);
  return logits;
}

struct DeviceLayerOps::Rows {
  at::Tensor tokens;                        // [R]
  at::Tensor support_offsets, support_ids;  // undefined: no row has a support
};

DeviceLayerOps::Rows DeviceLayerOps::UploadRows(std::span<const int64_t> tokens,
                                                Supports support) const {
  Rows rows{Upload(tokens, at::kLong), {}, {}};
  if (support.empty()) return rows;
  std::vector<int64_t> offsets = {0};
  std::vector<int32_t> ids;
  for (const std::span<const int32_t> of_row : support) {
    ids.insert(ids.end(), of_row.begin(), of_row.end());
    offsets.push_back(static_cast<int64_t>(ids.size()));
  }
  rows.support_offsets = Upload(std::span<const int64_t>(offsets), at::kLong);
  rows.support_ids = Upload(std::span<const int32_t>(ids), at::kInt);
  return rows;
}

cuda::LogitRows DeviceLayerOps::LogitRowsOf(const at::Tensor& logits, const Rows& rows,
                                            double temperature) const {
  cuda::LogitRows of = {.logits = logits.const_data_ptr<float>(),
                        .tokens = rows.tokens.const_data_ptr<int64_t>(),
                        .rows = logits.size(0),
                        .vocabulary = logits.size(1),
                        // As the server divides: in fp32.
                        .inverse_temperature = 1.0f / static_cast<float>(temperature)};
  if (rows.support_ids.defined()) {
    of.support_offsets = rows.support_offsets.const_data_ptr<int64_t>();
    of.support_ids = rows.support_ids.const_data_ptr<int32_t>();
  }
  return of;
}

void DeviceLayerOps::RunLogprobs(const cuda::TokenLogprobs& task) const {
  cuda::RunTokenLogprobs(task, CurrentStream());
}

RowLogprobs DeviceLayerOps::Logprobs(const at::Tensor& logits, std::span<const int64_t> tokens,
                                     double temperature, Supports support) const {
  const Rows rows = UploadRows(tokens, support);
  const auto numbers = [&] { return at::empty({logits.size(0)}, On(at::kFloat)); };
  RowLogprobs result{numbers(), numbers(), numbers()};
  RunLogprobs({.of = LogitRowsOf(logits, rows, temperature),
               .logprobs = result.logprobs.data_ptr<float>(),
               .entropies = result.entropies.data_ptr<float>(),
               .lse = result.lse.data_ptr<float>()});
  CheckLaunch("log-probs");
  return result;
}

at::Tensor DeviceLayerOps::LogprobsBackward(at::Tensor logits, std::span<const int64_t> tokens,
                                            double temperature, Supports support,
                                            const at::Tensor& lse, const at::Tensor& logprobs_grad,
                                            const EntropyGrad& entropy) const {
  const auto numbers = [](const at::Tensor& x) {
    return x.defined() ? x.const_data_ptr<float>() : nullptr;
  };
  const Rows rows = UploadRows(tokens, support);
  at::Tensor grad = type_ == at::kFloat ? logits : at::empty(logits.sizes(), On(type_));
  cuda::RunTokenLogprobsBackward({.of = LogitRowsOf(logits, rows, temperature),
                                  .lse = lse.const_data_ptr<float>(),
                                  .logprobs_grad = logprobs_grad.const_data_ptr<float>(),
                                  .entropies = numbers(entropy.entropies),
                                  .entropies_grad = numbers(entropy.grad),
                                  .logits_grad = grad.data_ptr(),
                                  .element = ElementOf(grad)},
                                 CurrentStream());
  CheckLaunch("log-probs, backward");
  return grad;
}

at::Tensor DeviceLayerOps::CastToBf16(const std::string& name, const at::Tensor& master,
                                      Rounding rounding) const {
  at::Tensor cast = at::empty(master.sizes(), On(at::kBFloat16));
  cuda::RunWeightCast({.masters = master.const_data_ptr<float>(),
                       .count = master.numel(),
                       .dither = rounding == Rounding::kDither,
                       .name_hash = DitherNameHash(name),
                       .out = static_cast<uint16_t*>(cast.data_ptr())},
                      CurrentStream());
  CheckLaunch("cast");
  return cast;
}

}  // namespace tandem::trainer
