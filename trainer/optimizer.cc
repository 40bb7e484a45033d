#include "trainer/optimizer.h"

#include <ATen/Parallel.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "trainer/vector_math.h"

namespace tandem::trainer {
namespace {

constexpr int64_t kBlock = 1 << 15;  // elements per task, and per partial sum of the norm

TANDEM_VECTOR_CLONES
float SquaredNorm(const float* x, int64_t count) {
  float sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t i = 0; i < count; ++i) sum += x[i] * x[i];
  return sum;
}

struct Coefficients {
  float grad_scale;  // gradient -> what the moments see
  float beta1, beta2;
  float keep;                // 1 - learning_rate * weight_decay, or 1
  float step_size;           // learning_rate / (1 - beta1^t)
  float inverse_root_bias2;  // 1 / sqrt(1 - beta2^t)
  float epsilon;
};

// p = keep p - step_size m / (sqrt(v) / sqrt(1 - beta2^t) + eps); the gradient becomes zero.
TANDEM_VECTOR_CLONES
void UpdateBlock(float* p, float* g, float* m, float* v, int64_t count, const Coefficients& c) {
#pragma omp simd
  for (int64_t i = 0; i < count; ++i) {
    const float grad = g[i] * c.grad_scale;
    m[i] += (grad - m[i]) * (1 - c.beta1);
    v[i] = v[i] * c.beta2 + grad * grad * (1 - c.beta2);
    const float root = std::sqrt(v[i]) * c.inverse_root_bias2 + c.epsilon;
    p[i] = p[i] * c.keep - c.step_size * (m[i] / root);
    g[i] = 0;
  }
}

// Norm weights are vectors, and so are biases.
bool Decays(const NamedParameter& parameter) { return parameter.master.dim() >= 2; }

template <typename Body>
void ForEachBlock(int64_t count, const Body& body) {
  const int64_t num_blocks = (count + kBlock - 1) / kBlock;
  at::parallel_for(0, num_blocks, 1, [&](int64_t begin, int64_t end) {
    for (int64_t b = begin; b < end; ++b) {
      body(b, b * kBlock, std::min(kBlock, count - b * kBlock));
    }
  });
}

std::vector<Slice> WholeSlices(const std::vector<NamedParameter>& parameters) {
  std::vector<Slice> slices;
  for (size_t i = 0; i < parameters.size(); ++i) {
    slices.push_back({i, 0, parameters[i].master.numel()});
  }
  return slices;
}

HostTensor View(TensorSpec spec, const at::Tensor& tensor) {
  if (!tensor.defined()) return {.spec = std::move(spec), .bytes = {}, .owner = nullptr};
  const auto* bytes = static_cast<const std::byte*>(tensor.const_data_ptr());
  return {.spec = std::move(spec),
          .bytes = {bytes, tensor.nbytes()},
          .owner = std::make_shared<at::Tensor>(tensor)};
}

// Names of the state's tensors of a parameter, and what they are the moments of.
std::string FirstOf(const NamedParameter& parameter) { return "exp_avg." + parameter.name; }
std::string SecondOf(const NamedParameter& parameter) { return "exp_avg_sq." + parameter.name; }

absl::Status CheckSpec(const std::map<std::string, const TensorSpec*>& specs,
                       const std::string& name, const at::Tensor& like) {
  const auto found = specs.find(name);
  if (found == specs.end()) {
    return absl::InvalidArgumentError(absl::StrCat("optimizer state: ", name, " is missing"));
  }
  const TensorSpec& spec = *found->second;
  if (spec.dtype == DType::kF32 && spec.shape == like.sizes().vec()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("optimizer state: ", spec.ToString(), " does not fit its parameter"));
}

}  // namespace

AdamW::AdamW(const std::vector<NamedParameter>* parameters, const OptimizerOptions& options,
             OwnSlices own)
    : parameters_(parameters), options_(options), own_(std::move(own)) {
  for (const Slice& slice : own_.slices) {
    moments_.push_back({at::zeros({slice.num_elements}), at::zeros({slice.num_elements}),
                        Decays((*parameters_)[slice.parameter])});
  }
}

AdamW::AdamW(const std::vector<NamedParameter>* parameters, const OptimizerOptions& options)
    : AdamW(parameters, options, OwnSlices{.slices = WholeSlices(*parameters)}) {}

float* AdamW::Master(size_t slice) const {
  if (own_.apart) return own_.masters[slice].data_ptr<float>();
  const Slice& own = own_.slices[slice];
  return (*parameters_)[own.parameter].master.data_ptr<float>() + own.begin;
}

float* AdamW::Gradient(size_t slice) const {
  if (own_.apart) return own_.gradients[slice].data_ptr<float>();
  const Slice& own = own_.slices[slice];
  const at::Tensor& grad = (*parameters_)[own.parameter].master.grad();
  return grad.defined() ? grad.data_ptr<float>() + own.begin : nullptr;
}

double AdamW::SquaredGradNorm() const {
  double sum = 0;
  for (size_t i = 0; i < own_.slices.size(); ++i) {
    const float* const data = Gradient(i);
    if (data == nullptr) continue;
    const int64_t size = own_.slices[i].num_elements;
    std::vector<double> partial(static_cast<size_t>((size + kBlock - 1) / kBlock));
    ForEachBlock(size, [&](int64_t block, int64_t first, int64_t count) {
      partial[static_cast<size_t>(block)] = SquaredNorm(data + first, count);
    });
    for (const double part : partial) sum += part;
  }
  return sum;
}

OptimizerUpdate AdamW::Step(double squared_norm, double grad_scale) {
  OptimizerUpdate result;
  result.learning_rate = LearningRate(options_, num_updates_);
  result.grad_norm = std::sqrt(squared_norm) * grad_scale;
  if (!std::isfinite(result.grad_norm)) {
    result.skipped = true;
    ZeroGrads();
    return result;
  }
  double scale = grad_scale;
  if (options_.max_grad_norm > 0 && result.grad_norm > options_.max_grad_norm) {
    result.clipped = true;
    scale *= options_.max_grad_norm / (result.grad_norm + 1e-6);
  }
  ++num_updates_;
  const auto t = static_cast<double>(num_updates_);
  Coefficients c;
  c.grad_scale = static_cast<float>(scale);
  c.beta1 = static_cast<float>(options_.beta1);
  c.beta2 = static_cast<float>(options_.beta2);
  c.step_size = static_cast<float>(result.learning_rate / (1 - std::pow(options_.beta1, t)));
  c.inverse_root_bias2 = static_cast<float>(1 / std::sqrt(1 - std::pow(options_.beta2, t)));
  c.epsilon = static_cast<float>(options_.epsilon);
  for (size_t i = 0; i < own_.slices.size(); ++i) {
    const at::Tensor& master = (*parameters_)[own_.slices[i].parameter].master;
    if (Gradient(i) == nullptr) master.mutable_grad() = at::zeros_like(master.detach());
    c.keep = moments_[i].decays
                 ? static_cast<float>(1 - result.learning_rate * options_.weight_decay)
                 : 1.0f;
    float *p = Master(i), *g = Gradient(i);
    float *m = moments_[i].exp_avg.data_ptr<float>(), *v = moments_[i].exp_avg_sq.data_ptr<float>();
    ForEachBlock(own_.slices[i].num_elements, [&](int64_t, int64_t first, int64_t count) {
      UpdateBlock(p + first, g + first, m + first, v + first, count, c);
    });
  }
  return result;
}

void AdamW::ZeroGrads() {
  for (const at::Tensor& own : own_.gradients) own.zero_();
  if (own_.apart) return;
  for (const NamedParameter& parameter : *parameters_) {
    at::Tensor& grad = parameter.master.mutable_grad();
    if (grad.defined()) grad.zero_();
  }
}

std::pair<size_t, size_t> AdamW::SlicesOf(size_t parameter) const {
  const std::vector<Slice>& slices = own_.slices;
  const auto range = std::ranges::equal_range(slices, parameter, {}, &Slice::parameter);
  return {static_cast<size_t>(range.begin() - slices.begin()),
          static_cast<size_t>(range.end() - slices.begin())};
}

std::vector<TensorSource> AdamW::State(const Collect& collect) const {
  std::vector<TensorSource> state;
  for (size_t i = 0; i < parameters_->size(); ++i) {
    const NamedParameter& parameter = (*parameters_)[i];
    for (const auto& [name, moment] : {std::pair(FirstOf(parameter), &Moments::exp_avg),
                                       std::pair(SecondOf(parameter), &Moments::exp_avg_sq)}) {
      const TensorSpec spec = {name, DType::kF32, parameter.master.sizes().vec()};
      const auto read = [this, collect, spec, i, moment = moment]() -> absl::StatusOr<HostTensor> {
        std::vector<at::Tensor> own;
        const auto [begin, end] = SlicesOf(i);
        for (size_t s = begin; s < end; ++s) own.push_back(moments_[s].*moment);
        auto whole = collect(i, own);
        if (!whole.ok()) return whole.status();
        return View(spec, *whole);
      };
      state.push_back({spec, read});
    }
  }
  return state;
}

int64_t AdamW::state_bytes() const {
  size_t bytes = 0;
  for (const Moments& m : moments_) bytes += m.exp_avg.nbytes() + m.exp_avg_sq.nbytes();
  return static_cast<int64_t>(bytes);
}

absl::Status AdamW::Restore(const std::vector<TensorSource>& state, int64_t num_updates) {
  std::map<std::string, const TensorSpec*> specs;
  for (const TensorSource& source : state) specs[source.spec.name] = &source.spec;
  std::map<std::string, std::pair<size_t, at::Tensor Moments::*>> places;
  for (size_t i = 0; i < parameters_->size(); ++i) {
    const NamedParameter& parameter = (*parameters_)[i];
    places[FirstOf(parameter)] = {i, &Moments::exp_avg};
    places[SecondOf(parameter)] = {i, &Moments::exp_avg_sq};
    for (const std::string& name : {FirstOf(parameter), SecondOf(parameter)}) {
      const absl::Status fits = CheckSpec(specs, name, parameter.master);
      if (!fits.ok()) return fits;
    }
  }
  for (const TensorSource& source : state) {
    const auto place = places.find(source.spec.name);
    if (place == places.end()) continue;
    const auto [parameter, moment] = place->second;
    const absl::StatusOr<HostTensor> whole = source.read();
    if (!whole.ok()) return whole.status();
    TANDEM_CHECK(static_cast<int64_t>(whole->bytes.size()) == source.spec.num_bytes());
    const auto [begin, end] = SlicesOf(parameter);
    for (size_t s = begin; s < end; ++s) {
      const at::Tensor& own = moments_[s].*moment;
      std::memcpy(own.data_ptr(), whole->bytes.data() + own_.slices[s].begin * 4, own.nbytes());
    }
  }
  num_updates_ = num_updates;
  return absl::OkStatus();
}

}  // namespace tandem::trainer
