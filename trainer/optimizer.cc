#include "trainer/optimizer.h"

#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <string>

#include "absl/strings/str_cat.h"
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

double GlobalNorm(const std::vector<NamedParameter>& parameters) {
  double sum = 0;
  for (const NamedParameter& parameter : parameters) {
    const at::Tensor& grad = parameter.master.grad();
    if (!grad.defined()) continue;
    const float* data = grad.const_data_ptr<float>();
    std::vector<double> partial(static_cast<size_t>((grad.numel() + kBlock - 1) / kBlock));
    ForEachBlock(grad.numel(), [&](int64_t block, int64_t first, int64_t count) {
      partial[static_cast<size_t>(block)] = SquaredNorm(data + first, count);
    });
    for (const double part : partial) sum += part;
  }
  return std::sqrt(sum);
}

HostTensor View(const std::string& name, const at::Tensor& tensor) {
  const auto* bytes = static_cast<const std::byte*>(tensor.const_data_ptr());
  return {.spec = {name, DType::kF32, tensor.sizes().vec()},
          .bytes = {bytes, tensor.nbytes()},
          .owner = std::make_shared<at::Tensor>(tensor)};
}

absl::StatusOr<const HostTensor*> Find(const std::map<std::string, const HostTensor*>& state,
                                       const std::string& name, const at::Tensor& like) {
  const auto found = state.find(name);
  if (found == state.end()) {
    return absl::InvalidArgumentError(absl::StrCat("optimizer state: ", name, " is missing"));
  }
  const TensorSpec& spec = found->second->spec;
  if (spec.dtype != DType::kF32 || spec.shape != like.sizes().vec() ||
      found->second->bytes.size() != like.nbytes()) {
    return absl::InvalidArgumentError(
        absl::StrCat("optimizer state: ", spec.ToString(), " does not fit its parameter"));
  }
  return found->second;
}

}  // namespace

AdamW::AdamW(const std::vector<NamedParameter>* parameters, const OptimizerOptions& options)
    : parameters_(parameters), options_(options) {
  const at::NoGradGuard no_grad;
  for (const NamedParameter& parameter : *parameters_) {
    moments_.push_back({at::zeros_like(parameter.master.detach()),
                        at::zeros_like(parameter.master.detach()), Decays(parameter)});
  }
}

OptimizerUpdate AdamW::Step(double grad_scale) {
  OptimizerUpdate result;
  result.learning_rate = LearningRate(options_, num_updates_);
  result.grad_norm = GlobalNorm(*parameters_) * grad_scale;
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
  for (size_t i = 0; i < parameters_->size(); ++i) {
    const at::Tensor& master = (*parameters_)[i].master;
    at::Tensor& grad = master.mutable_grad();
    if (!grad.defined()) grad = at::zeros_like(master.detach());
    c.keep = moments_[i].decays
                 ? static_cast<float>(1 - result.learning_rate * options_.weight_decay)
                 : 1.0f;
    float *p = master.data_ptr<float>(), *g = grad.data_ptr<float>();
    float *m = moments_[i].exp_avg.data_ptr<float>(), *v = moments_[i].exp_avg_sq.data_ptr<float>();
    ForEachBlock(master.numel(), [&](int64_t, int64_t first, int64_t count) {
      UpdateBlock(p + first, g + first, m + first, v + first, count, c);
    });
  }
  return result;
}

void AdamW::ZeroGrads() {
  for (const NamedParameter& parameter : *parameters_) {
    at::Tensor& grad = parameter.master.mutable_grad();
    if (grad.defined()) grad.zero_();
  }
}

std::vector<HostTensor> AdamW::State() const {
  std::vector<HostTensor> state;
  for (size_t i = 0; i < moments_.size(); ++i) {
    const std::string& name = (*parameters_)[i].name;
    state.push_back(View("exp_avg." + name, moments_[i].exp_avg));
    state.push_back(View("exp_avg_sq." + name, moments_[i].exp_avg_sq));
  }
  return state;
}

absl::Status AdamW::Restore(const std::vector<HostTensor>& state, int64_t num_updates) {
  std::map<std::string, const HostTensor*> by_name;
  for (const HostTensor& tensor : state) by_name[tensor.spec.name] = &tensor;
  std::vector<std::pair<at::Tensor, const HostTensor*>> copies;
  for (size_t i = 0; i < moments_.size(); ++i) {
    const std::string& name = (*parameters_)[i].name;
    for (const auto& [prefix, tensor] : {std::pair("exp_avg.", moments_[i].exp_avg),
                                         std::pair("exp_avg_sq.", moments_[i].exp_avg_sq)}) {
      auto found = Find(by_name, absl::StrCat(prefix, name), tensor);
      if (!found.ok()) return found.status();
      copies.emplace_back(tensor, *found);
    }
  }
  for (const auto& [tensor, host] : copies) {
    std::memcpy(tensor.data_ptr(), host->bytes.data(), host->bytes.size());
  }
  num_updates_ = num_updates;
  return absl::OkStatus();
}

}  // namespace tandem::trainer
