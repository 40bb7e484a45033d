#include "trainer/policy/adapters/policy_adapters.h"

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <utility>

#include "common/base/stable_random.h"
#include "common/base/status_macros.h"
#include "common/lora/lora_merge.h"
#include "trainer/policy/tensor_memory.h"

namespace tandem::trainer {

absl::StatusOr<PolicyAdapters> PolicyAdapters::Create(const ModelConfig& config,
                                                      const LoraOptions& options, at::Device device,
                                                      bool trainable) {
  PolicyAdapters adapters;
  if (!options.enabled()) return adapters;
  adapters.options_ = options;
  auto modules = LoraModules(config, options);
  if (!modules.ok()) {
    return InvalidArgument("trainer.lora.targets: ", modules.status().message());
  }
  adapters.modules_ = *std::move(modules);
  for (const TensorSpec& spec : LoraTensors(adapters.modules_, options.rank, DType::kF32)) {
    at::Tensor master = at::empty(spec.shape, at::TensorOptions(at::kFloat).device(device));
    SetStored(master, false);
    master.requires_grad_(trainable);
    adapters.parameters_.push_back({spec.name, std::move(master)});
  }
  return adapters;
}

std::optional<size_t> PolicyAdapters::Find(const std::string& weight) const {
  const auto found = std::ranges::find(modules_, weight, &LoraModule::weight);
  if (found == modules_.end()) return std::nullopt;
  return static_cast<size_t>(found - modules_.begin());
}

void PolicyAdapters::Bind(size_t module, const ParameterRows& rows, LinearLayer& layer) const {
  LoraLayer& lora = layer.lora;
  lora.a = parameters_[2 * module].master.detach();
  lora.b = rows.Of(parameters_[2 * module + 1].master.detach());
  lora.scaling = options_.scaling();
  lora.dropout = options_.dropout;
  lora.module = module;
}

void PolicyAdapters::BindGrads(size_t module, const ParameterRows& rows, LinearLayer& layer) const {
  layer.lora.a_grad = parameters_[2 * module].master.grad();
  layer.lora.b_grad = rows.Of(parameters_[2 * module + 1].master.grad());
}

at::Tensor PolicyAdapters::Merged(size_t module, const at::Tensor& base) const {
  return Merged(module, parameters_[2 * module].master.detach(),
                parameters_[2 * module + 1].master.detach(), base);
}

at::Tensor PolicyAdapters::Merged(size_t module, const at::Tensor& of_a, const at::Tensor& of_b,
                                  const at::Tensor& base) const {
  const at::Tensor a = of_a.cpu(), b = of_b.cpu();
  const LoraFactors factors = {a.const_data_ptr<float>(), b.const_data_ptr<float>(), options_.rank,
                               modules_[module].in, options_.scaling()};
  const at::Tensor from = base.to(at::kFloat).contiguous();
  at::Tensor merged = at::empty_like(from);
  at::parallel_for(0, from.size(0), 16, [&](int64_t begin, int64_t end) {
    const int64_t at = begin * factors.in;
    MergeLora(factors, begin, end - begin, from.const_data_ptr<float>() + at,
              merged.data_ptr<float>() + at);
  });
  return merged;
}

std::vector<at::Tensor> InitialAdapters(const PolicyAdapters& adapters, uint64_t seed) {
  std::vector<at::Tensor> values;
  for (size_t module = 0; module < adapters.modules().size(); ++module) {
    const NamedParameter& a = adapters.parameters()[2 * module];
    const NamedParameter& b = adapters.parameters()[2 * module + 1];
    const float bound = 1.0f / std::sqrt(static_cast<float>(adapters.modules()[module].in));
    at::Tensor drawn = at::empty(a.master.sizes(), at::kFloat);
    float* to = drawn.data_ptr<float>();
    std::mt19937_64 generator(StableHash({seed, module}));
    for (int64_t i = 0; i < drawn.numel(); ++i) {
      const auto level = static_cast<float>(generator() >> 40);  // 24 bits, exactly
      to[i] = bound * (2 * (level + 0.5f) / 16777216.0f - 1);
    }
    values.push_back(std::move(drawn));
    values.push_back(at::zeros(b.master.sizes(), at::kFloat));
  }
  return values;
}

}  // namespace tandem::trainer
