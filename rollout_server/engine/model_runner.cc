#include "rollout_server/engine/model_runner.h"

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/index_select.h>

#include <cmath>
#include <cstring>

#include "rollout_server/engine/kernels.h"

namespace tandem::rollout {
namespace {

constexpr int64_t kBlock = KvBlockPool::kBlockTokens;
constexpr int64_t kRowGrain = 4;  // rows a thread takes at least: below it, waking one costs more

template <typename F>
void ForRows(int64_t n, const F& f) {
  at::parallel_for(0, n, kRowGrain, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) f(i);
  });
}

at::Tensor Fp32(std::initializer_list<int64_t> shape) { return at::empty(shape, at::kFloat); }

// Rows of the embedding as the fp32 residual stream.
at::Tensor Embed(const at::Tensor& embedding, const std::vector<TokenInput>& inputs) {
  at::Tensor ids = at::empty({static_cast<int64_t>(inputs.size())}, at::kLong);
  for (size_t i = 0; i < inputs.size(); ++i) ids.data_ptr<int64_t>()[i] = inputs[i].token_id;
  return at::index_select(embedding, 0, ids).to(at::kFloat).contiguous();
}

void NormRows(at::Tensor& x, const at::Tensor* delta, const at::Tensor& weight, double eps,
              at::Tensor& out) {
  const int64_t n = x.size(0), e = x.size(1);
  float* px = x.data_ptr<float>();
  const float* pd = delta ? delta->const_data_ptr<float>() : nullptr;
  const float* pw = weight.const_data_ptr<float>();
  float* po = out.data_ptr<float>();
  ForRows(n, [&](int64_t i) {
    if (pd) {
      AddRmsNorm(px + i * e, pd + i * e, pw, e, static_cast<float>(eps), po + i * e);
    } else {
      RmsNorm(px + i * e, pw, e, static_cast<float>(eps), po + i * e);
    }
  });
}

at::Tensor ActivateRows(const at::Tensor& gate_up) {
  const int64_t n = gate_up.size(0), width = gate_up.size(1) / 2;
  at::Tensor out = Fp32({n, width});
  const float* in = gate_up.const_data_ptr<float>();
  float* po = out.data_ptr<float>();
  ForRows(n, [&](int64_t i) { SwiGlu(in + i * 2 * width, width, po + i * width); });
  return out;
}

}  // namespace

ModelRunner::ModelRunner(const ModelConfig& config, ComputeDType dtype, int64_t num_blocks)
    : config_(config),
      dtype_(dtype),
      padded_d_((config.head_dim + kHeadPadding - 1) / kHeadPadding * kHeadPadding),
      inverse_frequencies_(RotaryInverseFrequencies(config)) {
  const at::ScalarType type = dtype == ComputeDType::kBf16 ? at::kBFloat16 : at::kFloat;
  keys_ = at::empty({config.num_layers, num_blocks, config.num_kv_heads, config.head_dim, kBlock},
                    type);
  values_ = at::empty({config.num_layers, num_blocks, config.num_kv_heads, kBlock, padded_d_}, type);
}

void ModelRunner::FillRotary(const std::vector<TokenInput>& inputs) {
  const int64_t n = static_cast<int64_t>(inputs.size());
  const int64_t half = static_cast<int64_t>(inverse_frequencies_.size());
  cosines_ = Fp32({n, half});
  sines_ = Fp32({n, half});
  float* cosines = cosines_.data_ptr<float>();
  float* sines = sines_.data_ptr<float>();
  ForRows(n, [&](int64_t t) {
    for (int64_t i = 0; i < half; ++i) {
      const float angle = static_cast<float>(inputs[t].position) * inverse_frequencies_[i];
      cosines[t * half + i] = std::cos(angle);
      sines[t * half + i] = std::sin(angle);
    }
  });
}

// Normalises (Qwen3) and rotates queries and keys in place, scales queries, and writes keys and values.
template <typename Kv>
void ModelRunner::WriteCache(int64_t layer, const LayerWeights& weights,
                             const std::vector<TokenInput>& inputs, at::Tensor& qkv) {
  const int64_t d = config_.head_dim, heads = config_.num_heads, kv_heads = config_.num_kv_heads;
  const int64_t half = d / 2;
  const float scale = 1.0f / std::sqrt(static_cast<float>(d));
  const float eps = static_cast<float>(config_.rms_norm_eps);
  const float* q_norm = weights.q_norm.defined() ? weights.q_norm.const_data_ptr<float>() : nullptr;
  const float* k_norm = weights.k_norm.defined() ? weights.k_norm.const_data_ptr<float>() : nullptr;
  float* rows = qkv.data_ptr<float>();
  const float* cosines = cosines_.const_data_ptr<float>();
  const float* sines = sines_.const_data_ptr<float>();
  Kv* keys = static_cast<Kv*>(keys_.data_ptr()) + layer * keys_.stride(0);
  Kv* values = static_cast<Kv*>(values_.data_ptr()) + layer * values_.stride(0);
  ForRows(static_cast<int64_t>(inputs.size()), [&](int64_t t) {
    float* row = rows + t * (heads + 2 * kv_heads) * d;
    const float* cosine = cosines + t * half;
    const float* sine = sines + t * half;
    for (int64_t h = 0; h < heads; ++h) {
      float* query = row + h * d;
      if (q_norm) RmsNorm(query, q_norm, d, eps, query);
      Rotate(query, cosine, sine, d);
      for (int64_t i = 0; i < d; ++i) query[i] *= scale;
    }
    const int64_t block = (*inputs[t].blocks)[inputs[t].position / kBlock];
    const int64_t slot = inputs[t].position % kBlock;
    for (int64_t h = 0; h < kv_heads; ++h) {
      float* key = row + (heads + h) * d;
      if (k_norm) RmsNorm(key, k_norm, d, eps, key);
      Rotate(key, cosine, sine, d);
      WriteKv(key, row + (heads + kv_heads + h) * d, d, padded_d_, slot,
              keys + block * keys_.stride(1) + h * keys_.stride(2),
              values + block * values_.stride(1) + h * values_.stride(2));
    }
  });
}

template <typename Kv>
void ModelRunner::Attend(int64_t layer, const std::vector<TokenInput>& inputs,
                         const at::Tensor& qkv, at::Tensor& out) {
  const int64_t d = config_.head_dim, heads = config_.num_heads, kv_heads = config_.num_kv_heads;
  const int64_t group = heads / kv_heads;
  const KvLayer<Kv> cache = {
      static_cast<const Kv*>(keys_.const_data_ptr()) + layer * keys_.stride(0),
      static_cast<const Kv*>(values_.const_data_ptr()) + layer * values_.stride(0),
      keys_.stride(1), keys_.stride(2), values_.stride(1), values_.stride(2)};
  const float* rows = qkv.const_data_ptr<float>();
  float* po = out.data_ptr<float>();
  const int64_t work = static_cast<int64_t>(inputs.size()) * kv_heads;
  at::parallel_for(0, work, 2, [&](int64_t begin, int64_t end) {
    thread_local std::vector<float> scratch;
    for (int64_t i = begin; i < end; ++i) {
      const int64_t t = i / kv_heads, h = i % kv_heads;
      const int64_t context = inputs[t].position + 1;
      const int64_t padded = (context + kBlock - 1) / kBlock * kBlock;
      if (static_cast<int64_t>(scratch.size()) < group * padded) scratch.resize(group * padded);
      AttendHead<Kv>(rows + t * (heads + 2 * kv_heads) * d + h * group * d, group, d, padded_d_,
                     cache, h, inputs[t].blocks->data(), context, scratch.data(),
                     po + t * heads * d + h * group * d);
    }
  });
}

at::Tensor ModelRunner::Run(const ModelWeights& weights, const std::vector<TokenInput>& inputs,
                            const std::vector<int64_t>& logits_rows) {
  const int64_t n = static_cast<int64_t>(inputs.size());
  FillRotary(inputs);
  at::Tensor x = Embed(weights.embedding, inputs);
  at::Tensor normed = Fp32({n, config_.hidden_size});
  at::Tensor attended = Fp32({n, config_.num_heads * config_.head_dim});
  at::Tensor delta;
  for (int64_t layer = 0; layer < config_.num_layers; ++layer) {
    const LayerWeights& w = weights.layers[layer];
    NormRows(x, layer == 0 ? nullptr : &delta, w.input_norm, config_.rms_norm_eps, normed);
    at::Tensor qkv = w.qkv.Run(normed);
    if (dtype_ == ComputeDType::kBf16) {
      WriteCache<uint16_t>(layer, w, inputs, qkv);
      Attend<uint16_t>(layer, inputs, qkv, attended);
    } else {
      WriteCache<float>(layer, w, inputs, qkv);
      Attend<float>(layer, inputs, qkv, attended);
    }
    delta = w.o.Run(attended);
    NormRows(x, &delta, w.post_norm, config_.rms_norm_eps, normed);
    delta = w.down.Run(ActivateRows(w.gate_up.Run(normed)));
  }
  NormRows(x, &delta, weights.final_norm, config_.rms_norm_eps, normed);
  if (logits_rows.empty()) return Fp32({0, config_.vocab_size});
  at::Tensor rows = at::empty({static_cast<int64_t>(logits_rows.size())}, at::kLong);
  std::memcpy(rows.data_ptr(), logits_rows.data(), rows.nbytes());
  return weights.head.Run(at::index_select(normed, 0, rows).contiguous());
}

void ModelRunner::CopyBlocks(const std::vector<BlockCopy>& copies) {
  const auto copy = [&](at::Tensor& cache) {
    const int64_t bytes = cache.stride(1) * cache.element_size();
    for (int64_t layer = 0; layer < config_.num_layers; ++layer) {
      char* base = static_cast<char*>(cache.data_ptr()) +
                   layer * cache.stride(0) * cache.element_size();
      for (const BlockCopy& c : copies) {
        std::memcpy(base + c.to * bytes, base + c.from * bytes, bytes);
      }
    }
  };
  copy(keys_);
  copy(values_);
}

}  // namespace tandem::rollout
