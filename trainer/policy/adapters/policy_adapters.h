// PolicyAdapters: the trainable adapters of a policy whose model is frozen (LoRA). Used by policy.cc,
// which binds them to its layers. Use from one thread. Exceptions of LibTorch pass through.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/lora/lora_shape.h"
#include "common/model/model_config.h"
#include "trainer/policy/layer_ops.h"
#include "trainer/policy/named_parameter.h"

namespace tandem::trainer {

// Rows [begin, end) of a parameter that joins several projections; end 0: all of any parameter.
struct ParameterRows {
  int64_t begin = 0, end = 0;

  at::Tensor Of(const at::Tensor& parameter) const {
    return end == 0 ? parameter : parameter.narrow(0, begin, end - begin);
  }
};

class PolicyAdapters {
 public:
  PolicyAdapters() = default;  // none

  // Masters without memory (tensor_memory.h), LoraTensors order.
  //   errors of LoraModules
  static absl::StatusOr<PolicyAdapters> Create(const ModelConfig& config,
                                               const LoraOptions& options, at::Device device,
                                               bool trainable);

  bool enabled() const { return options_.enabled(); }
  const LoraOptions& options() const { return options_; }
  const std::vector<LoraModule>& modules() const { return modules_; }
  const std::vector<NamedParameter>& parameters() const { return parameters_; }

  // The module of the model's tensor `weight`.
  std::optional<size_t> Find(const std::string& weight) const;

  // Lets a layer that has these rows of the module's outputs share its masters.
  void Bind(size_t module, const ParameterRows& rows, LinearLayer& layer) const;
  // The same for the masters' gradients, which must exist.
  void BindGrads(size_t module, const ParameterRows& rows, LinearLayer& layer) const;

  // base [out, in], of any float dtype, on the host, with the module's adapter merged in (MergeLora),
  // float32. From the masters, or from the values `a` and `b` of A and B. Parallel.
  at::Tensor Merged(size_t module, const at::Tensor& base) const;
  at::Tensor Merged(size_t module, const at::Tensor& a, const at::Tensor& b,
                    const at::Tensor& base) const;

 private:
  LoraOptions options_;
  std::vector<LoraModule> modules_;
  std::vector<NamedParameter> parameters_;  // A, B, A, B, ...
};

// What adapters begin from, in the order of parameters(), on the host: A uniform in +-1 / sqrt(in),
// which is kaiming_uniform(a = sqrt 5) as in PEFT, a function of seed, module and element alone; B
// zero.
std::vector<at::Tensor> InitialAdapters(const PolicyAdapters& adapters, uint64_t seed);

}  // namespace tandem::trainer
