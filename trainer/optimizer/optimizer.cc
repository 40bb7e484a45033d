#include "trainer/optimizer/optimizer.h"

#include <ATen/Parallel.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <string>
#include <utility>

#include "common/base/check.h"
#include "common/base/status_macros.h"
#include "common/tensor/host_tensor_conversion.h"
#include "trainer/optimizer/fused_update.h"
#include "trainer/policy/cpu/vector_math.h"

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

// Names of the state's tensors of a parameter, and what they are the moments of.
std::string FirstOf(const NamedParameter& parameter) { return "exp_avg." + parameter.name; }
std::string SecondOf(const NamedParameter& parameter) { return "exp_avg_sq." + parameter.name; }

absl::Status CheckSpec(const std::map<std::string, const TensorSpec*>& specs,
                       const std::string& name, const at::Tensor& like) {
  const auto found = specs.find(name);
  if (found == specs.end()) {
    return InvalidArgument("optimizer state: ", name, " is missing");
  }
  const TensorSpec& spec = *found->second;
  if (spec.dtype == DType::kF32 && spec.shape == like.sizes().vec()) return absl::OkStatus();
  return InvalidArgument("optimizer state: ", spec.ToString(), " does not fit its parameter");
}

}  // namespace

AdamW::AdamW(const std::vector<NamedParameter>* parameters, const OptimizerOptions& options,
             OwnSlices own, UpdateLoops loops)
    : parameters_(parameters), options_(options), own_(std::move(own)), loops_(loops) {
  for (const Slice& slice : own_.slices) {
    const NamedParameter& parameter = (*parameters_)[slice.parameter];
    const auto zeros = [&] { return at::zeros({slice.num_elements}, parameter.master.options()); };
    moments_.push_back({zeros(), zeros(), Decays(parameter)});
  }
}

AdamW::AdamW(const std::vector<NamedParameter>* parameters, const OptimizerOptions& options)
    : AdamW(parameters, options, OwnSlices{.slices = WholeSlices(*parameters)}) {}

at::Tensor AdamW::Master(size_t slice) const {
  if (own_.apart) return own_.masters[slice];
  const Slice& own = own_.slices[slice];
  const at::Tensor& master = (*parameters_)[own.parameter].master;
  return master.detach().view(-1).narrow(0, own.begin, own.num_elements);
}

at::Tensor AdamW::Gradient(size_t slice) const {
  if (own_.apart) return own_.gradients[slice];
  const Slice& own = own_.slices[slice];
  const at::Tensor& grad = (*parameters_)[own.parameter].master.grad();
  return grad.defined() ? grad.detach().view(-1).narrow(0, own.begin, own.num_elements) : grad;
}

bool AdamW::OwnLoops() const {
  return loops_ == UpdateLoops::kByDevice &&
         (parameters_->empty() || (*parameters_)[0].master.is_cpu());
}

double AdamW::SquaredGradNorm() const {
  double sum = 0;
  std::vector<at::Tensor> gradients;
  for (size_t i = 0; i < own_.slices.size(); ++i) {
    const at::Tensor gradient = Gradient(i);
    if (!gradient.defined()) continue;
    if (!OwnLoops()) {
      gradients.push_back(gradient);
      continue;
    }
    const float* const data = gradient.const_data_ptr<float>();
    const int64_t size = own_.slices[i].num_elements;
    std::vector<double> partial(static_cast<size_t>((size + kBlock - 1) / kBlock));
    ForEachBlock(size, [&](int64_t block, int64_t first, int64_t count) {
      partial[static_cast<size_t>(block)] = SquaredNorm(data + first, count);
    });
    for (const double part : partial) sum += part;
  }
  return sum + SumOfSquares(gradients);
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
  FusedCoefficients c = {.learning_rate = result.learning_rate,
                         .beta1 = options_.beta1,
                         .beta2 = options_.beta2,
                         .epsilon = options_.epsilon,
                         .weight_decay = options_.weight_decay,
                         .gradient_scale = grad_scale,
                         .num_updates = ++num_updates_};
  if (options_.max_grad_norm > 0 && result.grad_norm > options_.max_grad_norm) {
    result.clipped = true;
    c.gradient_scale *= options_.max_grad_norm / (result.grad_norm + 1e-6);
  }
  for (size_t i = 0; i < own_.slices.size(); ++i) {
    const at::Tensor& master = (*parameters_)[own_.slices[i].parameter].master;
    if (!Gradient(i).defined()) master.mutable_grad() = at::zeros_like(master.detach());
    if (OwnLoops()) UpdateByOwnLoops(i, c);
  }
  if (!OwnLoops()) UpdateByLibTorch(c);
  return result;
}

void AdamW::UpdateByOwnLoops(size_t slice, const FusedCoefficients& f) {
  const Moments& moments = moments_[slice];
  const auto t = static_cast<double>(f.num_updates);
  Coefficients c;
  c.grad_scale = static_cast<float>(f.gradient_scale);
  c.beta1 = static_cast<float>(f.beta1);
  c.beta2 = static_cast<float>(f.beta2);
  c.step_size = static_cast<float>(f.learning_rate / (1 - std::pow(f.beta1, t)));
  c.inverse_root_bias2 = static_cast<float>(1 / std::sqrt(1 - std::pow(f.beta2, t)));
  c.epsilon = static_cast<float>(f.epsilon);
  c.keep = moments.decays ? static_cast<float>(1 - f.learning_rate * f.weight_decay) : 1.0f;
  float *p = Master(slice).data_ptr<float>(), *g = Gradient(slice).data_ptr<float>();
  float *m = moments.exp_avg.data_ptr<float>(), *v = moments.exp_avg_sq.data_ptr<float>();
  ForEachBlock(own_.slices[slice].num_elements, [&](int64_t, int64_t first, int64_t count) {
    UpdateBlock(p + first, g + first, m + first, v + first, count, c);
  });
}

// One call for the parameters with weight decay and one for those without.
void AdamW::UpdateByLibTorch(FusedCoefficients c) {
  for (const bool decays : {true, false}) {
    FusedTensors tensors;
    for (size_t i = 0; i < moments_.size(); ++i) {
      if (moments_[i].decays != decays) continue;
      tensors.masters.push_back(Master(i));
      tensors.gradients.push_back(Gradient(i));
      tensors.exp_avg.push_back(moments_[i].exp_avg);
      tensors.exp_avg_sq.push_back(moments_[i].exp_avg_sq);
    }
    if (!decays) c.weight_decay = 0;
    FusedAdamW(tensors, c);
  }
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
        TANDEM_ASSIGN_OR_RETURN(const at::Tensor whole, collect(i, own));
        if (!whole.defined()) return HostTensor{spec, {}, nullptr};
        TANDEM_ASSIGN_OR_RETURN(HostTensor tensor, ToHostTensor(spec.name, whole));
        tensor.spec = spec;
        return tensor;
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
      TANDEM_RETURN_IF_ERROR(CheckSpec(specs, name, parameter.master));
    }
  }
  for (const TensorSource& source : state) {
    const auto place = places.find(source.spec.name);
    if (place == places.end()) continue;
    const auto [parameter, moment] = place->second;
    TANDEM_ASSIGN_OR_RETURN(const HostTensor whole, source.read());
    TANDEM_CHECK(static_cast<int64_t>(whole.bytes.size()) == source.spec.num_bytes());
    TANDEM_ASSIGN_OR_RETURN(const at::Tensor values, ViewAsTensor(whole));
    const auto [begin, end] = SlicesOf(parameter);
    for (size_t s = begin; s < end; ++s) {
      const Slice& slice = own_.slices[s];
      (moments_[s].*moment).copy_(values.view(-1).narrow(0, slice.begin, slice.num_elements));
    }
  }
  num_updates_ = num_updates;
  return absl::OkStatus();
}

}  // namespace tandem::trainer
