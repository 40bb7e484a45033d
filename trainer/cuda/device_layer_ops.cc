#include "trainer/cuda/device_layer_ops.h"

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>

#include <cstring>
#include <limits>
#include <utility>
#include <vector>

#include "trainer/cuda/run_attention.h"

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

at::Tensor ByHeads(const at::Tensor& x, const HeadCounts& heads) {
  return x.view({x.size(0), -1, heads.head_dim});
}

// Rows of a packed row, neighbours where they are: then nothing is copied.
class Rows {
 public:
  Rows(std::vector<int64_t> indices, const at::Device& device)
      : first_(indices.front()), count_(static_cast<int64_t>(indices.size())) {
    if (indices.back() - first_ + 1 == count_) return;
    indices_ = at::tensor(indices, at::kLong).to(device);
  }

  at::Tensor Take(const at::Tensor& x, int64_t dim = 0) const {
    return indices_.defined() ? x.index_select(dim, indices_) : x.narrow(dim, first_, count_);
  }
  void Put(const at::Tensor& values, at::Tensor x, int64_t dim = 0) const {
    if (indices_.defined()) {
      x.index_copy_(dim, indices_, values);
    } else {
      x.narrow(dim, first_, count_).copy_(values);
    }
  }
  void Add(const at::Tensor& values, at::Tensor x) const {
    if (indices_.defined()) {
      x.index_copy_(0, indices_, x.index_select(0, indices_).add_(values));
    } else {
      x.narrow(0, first_, count_).add_(values);
    }
  }

 private:
  const int64_t first_, count_;
  at::Tensor indices_;  // undefined: neighbours
};

// A packed row's attention in two parts: every segment over itself, causal; and the completions of
// each prompt, as one run of queries, over the prompt.
struct RowParts {
  AttentionRuns own{.causal = true};
  AttentionRuns over_prompts;
  std::vector<int64_t> completions, prompts;  // rows of the second part's queries and keys
};

void AppendRange(int64_t begin, int64_t end, std::vector<int64_t>& rows) {
  for (int64_t t = begin; t < end; ++t) rows.push_back(t);
}

RowParts PartsOf(std::span<const Segment> segments) {
  RowParts parts;
  int64_t end = 0;
  for (const Segment& segment : segments) {
    TORCH_CHECK(segment.begin == end, "segments of a packed row lie one after the other");
    end = segment.end;
    parts.own.query_ends.push_back(static_cast<int32_t>(end));
  }
  parts.own.key_ends = parts.own.query_ends;
  for (const auto& part : SplitByPrompt(segments)) {
    if (part.size() == 1) continue;
    AppendRange(part[1].begin, part.back().end, parts.completions);
    AppendRange(part[0].begin, part[0].end, parts.prompts);
    parts.over_prompts.query_ends.push_back(static_cast<int32_t>(parts.completions.size()));
    parts.over_prompts.key_ends.push_back(static_cast<int32_t>(parts.prompts.size()));
  }
  return parts;
}

// of[t] += with[t] as softmax over the keys of both: `of` becomes the whole.
Attention Merged(const Attention& of, const Attention& with) {
  const at::Tensor lse = at::logaddexp(of.lse, with.lse);
  const auto share = [&](const Attention& part) {
    return (part.lse - lse).exp_().t().unsqueeze(2) * part.out;
  };
  return {share(of).add_(share(with)), lse};
}

// As the server divides: in fp32.
float InverseTemperature(double temperature) { return 1.0f / static_cast<float>(temperature); }

}  // namespace

template <typename T>
at::Tensor DeviceLayerOps::Upload(std::span<const T> values, at::ScalarType type) const {
  at::Tensor host = at::empty({static_cast<int64_t>(values.size())}, type);
  TORCH_CHECK(host.nbytes() == values.size_bytes());
  std::memcpy(host.data_ptr(), values.data(), values.size_bytes());
  return host.to(device_);
}

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
  AddProduct(operand.t(), As(x, type), layer.weight_grad);
  if (layer.bias.defined()) layer.bias_grad.add_(y_grad.sum(0, /*keepdim=*/false, at::kFloat));
  return at::mm(operand, layer.weight);
}

Normed DeviceLayerOps::RmsNorm(const NormLayer& layer, const at::Tensor& x, double eps) const {
  const at::Tensor rows = Widened(x).view({-1, layer.weight.size(0)});
  const at::Tensor rstd = rows.square().mean(1).add_(eps).rsqrt_();
  const at::Tensor value = (rows * rstd.unsqueeze(1)).mul_(layer.weight);
  return {As(value, layer.in_fp32 ? at::kFloat : type_).view(x.sizes()), rstd};
}

void DeviceLayerOps::RmsNormBackward(const NormLayer& layer, const at::Tensor& x,
                                     const at::Tensor& rstd, const at::Tensor& value_grad,
                                     at::Tensor& x_grad) const {
  const int64_t width = layer.weight.size(0);
  const at::Tensor scale = rstd.unsqueeze(1);
  const at::Tensor normed = Widened(x).view({-1, width}) * scale;
  const at::Tensor grad = Widened(value_grad).view({-1, width});
  layer.weight_grad.add_((grad * normed).sum(0));
  at::Tensor weighted = grad * layer.weight;
  const at::Tensor along = (weighted * normed).mean(1, /*keepdim=*/true);
  const at::Tensor result = weighted.sub_(normed * along).mul_(scale).view(x.sizes());
  if (x_grad.defined()) {
    x_grad.add_(result);
  } else {
    x_grad = As(result, x.scalar_type());
  }
}

RotaryTable DeviceLayerOps::MakeRotaryTable(std::span<const int32_t> positions,
                                            std::span<const float> inverse_frequencies) const {
  const at::Tensor angles =
      at::outer(Widened(Upload(positions, at::kInt)), Upload(inverse_frequencies, at::kFloat));
  const at::Tensor sine = angles.sin();
  return {angles.cos(), sine, sine.neg()};
}

void DeviceLayerOps::Rotate(at::Tensor& x, int64_t num_heads, const RotaryTable& table,
                            bool backward) const {
  const int64_t half = table.cosine.size(1);
  const at::Tensor halves = Widened(x).view({-1, num_heads, 2, half});
  const at::Tensor cosine = table.cosine.unsqueeze(1);
  const at::Tensor sine = (backward ? table.minus_sine : table.sine).unsqueeze(1);
  const at::Tensor a = halves.select(2, 0), b = halves.select(2, 1);
  x.view({-1, num_heads, 2, half})
      .copy_(at::stack({a * cosine - b * sine, b * cosine + a * sine}, 2));
}

at::Tensor DeviceLayerOps::SwiGlu(const at::Tensor& gate, const at::Tensor& up) const {
  return As(at::silu(Widened(gate)).mul_(up), gate.scalar_type());
}

void DeviceLayerOps::SwiGluBackward(const at::Tensor& out_grad, at::Tensor& gate,
                                    at::Tensor& up) const {
  const at::Tensor g = Widened(gate), grad = Widened(out_grad);
  const at::Tensor sigmoid = at::sigmoid(g);
  const at::Tensor silu = g * sigmoid;
  const at::Tensor slope = sigmoid + silu * (1 - sigmoid);
  gate.copy_(slope.mul_(grad).mul_(up));
  up.copy_(grad * silu);
}

Attention DeviceLayerOps::Attend(const at::Tensor& q, at::Tensor& k, at::Tensor& v,
                                 std::span<const Segment> segments, const HeadCounts& heads) const {
  const at::Tensor queries = ByHeads(q, heads), keys = ByHeads(k, heads),
                   values = ByHeads(v, heads);
  const RowParts parts = PartsOf(segments);
  Attention whole = AttendRuns(queries, keys, values, parts.own);
  if (!parts.completions.empty()) {
    const Rows rows(parts.completions, device_), prompts(parts.prompts, device_);
    const Attention over_prompts = AttendRuns(rows.Take(queries), prompts.Take(keys),
                                              prompts.Take(values), parts.over_prompts);
    const Attention merged = Merged({rows.Take(whole.out), rows.Take(whole.lse, 1)}, over_prompts);
    rows.Put(As(merged.out, whole.out.scalar_type()), whole.out);
    rows.Put(merged.lse, whole.lse, 1);
  }
  return {whole.out.view(q.sizes()), whole.lse};
}

AttentionGrads DeviceLayerOps::AttendBackward(const at::Tensor& q, const at::Tensor& k,
                                              const at::Tensor& v, const Attention& attention,
                                              const at::Tensor& out_grad,
                                              std::span<const Segment> segments,
                                              const HeadCounts& heads) const {
  const at::Tensor queries = ByHeads(q, heads), keys = ByHeads(k, heads),
                   values = ByHeads(v, heads);
  const at::Tensor grad = ByHeads(out_grad, heads), out = ByHeads(attention.out, heads);
  const RowParts parts = PartsOf(segments);
  AttentionGrads grads =
      AttendRunsBackward(grad, queries, keys, values, {out, attention.lse}, parts.own);
  if (!parts.completions.empty()) {
    const Rows rows(parts.completions, device_), prompts(parts.prompts, device_);
    const AttentionGrads over_prompts = AttendRunsBackward(
        rows.Take(grad), rows.Take(queries), prompts.Take(keys), prompts.Take(values),
        {rows.Take(out), rows.Take(attention.lse, 1)}, parts.over_prompts);
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

// [R, V] true where a logit is outside its row's support; undefined: nowhere.
at::Tensor DeviceLayerOps::SupportMask(Supports support, int64_t vocabulary) const {
  if (support.empty()) return {};
  const auto rows = static_cast<int64_t>(support.size());
  at::Tensor outside = at::zeros({rows, vocabulary}, at::kBool);
  for (int64_t r = 0; r < rows; ++r) {
    const auto ids = support[static_cast<size_t>(r)];
    if (ids.empty()) continue;
    bool* const row = outside.data_ptr<bool>() + r * vocabulary;
    std::fill_n(row, vocabulary, true);
    for (const int32_t id : ids) row[id] = false;
  }
  return outside.to(device_);
}

RowLogprobs DeviceLayerOps::Logprobs(const at::Tensor& logits, std::span<const int64_t> tokens,
                                     double temperature, Supports support) const {
  const at::Tensor outside = SupportMask(support, logits.size(1));
  at::Tensor tempered = logits * InverseTemperature(temperature);
  if (outside.defined()) {
    tempered.masked_fill_(outside, -std::numeric_limits<double>::infinity());
  }
  const at::Tensor largest = tempered.amax(1, /*keepdim=*/true);
  tempered.sub_(largest);
  const at::Tensor shares = tempered.exp();
  const at::Tensor mass = shares.sum(1);
  const at::Tensor log_mass = mass.log();
  const at::Tensor chosen = tempered.gather(1, Upload(tokens, at::kLong).unsqueeze(1)).squeeze(1);
  if (outside.defined()) tempered.masked_fill_(outside, 0);  // 0 of them is not 0 times infinity
  const at::Tensor mean = tempered.mul_(shares).sum(1).div_(mass);
  return {chosen - log_mass, log_mass - mean, largest.squeeze(1) + log_mass};
}

at::Tensor DeviceLayerOps::LogprobsBackward(at::Tensor logits, std::span<const int64_t> tokens,
                                            double temperature, Supports support,
                                            const at::Tensor& lse,
                                            const at::Tensor& logprobs_grad) const {
  const float inverse_temperature = InverseTemperature(temperature);
  const at::Tensor outside = SupportMask(support, logits.size(1));
  const at::Tensor scale = (logprobs_grad * inverse_temperature).unsqueeze(1);
  logits.mul_(inverse_temperature).sub_(lse.unsqueeze(1)).exp_().mul_(-scale);
  if (outside.defined()) logits.masked_fill_(outside, 0);
  const at::Tensor index = Upload(tokens, at::kLong).unsqueeze(1);
  return logits.scatter_(1, index, logits.gather(1, index) + scale);
}

}  // namespace tandem::trainer
