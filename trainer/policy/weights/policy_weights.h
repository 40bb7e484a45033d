// PolicyWeights: the parameters of a policy, and what the decoder reads of them: casts, weights as
// servers store them, the engine's packed matrices, adapters. Used by policy.cc. Use from one
// thread. Exceptions of LibTorch pass through.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/lora/lora_shape.h"
#include "common/model/model_config.h"
#include "common/model/numerics.h"
#include "common/model/quantisation_plan.h"
#include "trainer/policy/adapters/policy_adapters.h"
#include "trainer/policy/decoder.h"
#include "trainer/policy/layer_ops.h"
#include "trainer/policy/named_parameter.h"
#include "trainer/policy/pass_watch.h"
#include "trainer/weight_push/weight_cast.h"

namespace tandem::trainer {

// How the model computes with its parameters.
struct WeightUse {
  ComputeDType dtype = ComputeDType::kFp32;
  bool trainable = false;
  Numerics numerics = Numerics::kFast;
  Device device = Device::kCpu;
  QuantisationPlan plan;  // no layers: nothing is quantised
  LoraOptions lora;
};

class PolicyWeights {
 public:
  // Masters without memory (tensor_memory.h), on the device of `ops`, which must outlive this
  // object. Errors: those of LoraModules.
  static absl::StatusOr<std::unique_ptr<PolicyWeights>> Create(const ModelConfig& config,
                                                               const WeightUse& use,
                                                               const LayerOps& ops);
  PolicyWeights(const PolicyWeights&) = delete;  // the decoder's tensors are bound by address
  PolicyWeights& operator=(const PolicyWeights&) = delete;

  const DecoderWeights& decoder() const { return decoder_; }
  // What is trained: the model's tensors, or the adapters'.
  const std::vector<NamedParameter>& parameters() const { return parameters_; }
  // The model's tensors, in ModelTensors order.
  const std::vector<NamedParameter>& model() const {
    return adapters_.enabled() ? base_ : parameters_;
  }
  const std::vector<NamedParameter>& base() const { return base_; }
  const PolicyAdapters& adapters() const { return adapters_; }
  const std::vector<std::vector<size_t>>& stages() const { return stages_; }
  bool trainable() const { return use_.trainable; }

  void Watch(PassWatch watch) { watch_ = std::move(watch); }
  const PassWatch& watch() const { return watch_; }
  // See Policy.
  void WeightsChanged(Rounding rounding);
  void BaseChanged();

  // From the next stage on: the pass that is under way.
  void SetPass(const LoraPass& pass) { pass_ = pass; }
  // Makes what a stage reads, where it is not there yet, and calls the watch.
  void BeginStage(Pass pass, size_t stage);
  void EndStage(Pass pass, size_t stage);
  LayerWatch Layers(Pass pass);
  // Gives every parameter a gradient to add to, before a backward pass.
  void PrepareGrads();

 private:
  // Where a tensor of the model is used: the tensor the decoder reads and the gradient it adds to.
  struct Use {
    size_t parameter;  // of model()
    at::Tensor* weight;
    at::Tensor* grad;
    LinearLayer* linear;                // set for a linear layer's weight
    bool is_head;                       // whose product is fp32 whatever the compute dtype
    size_t stage;                       // of a pass that reads the weight and adds to the gradient
    ParameterRows rows = {};            // of the parameter
    WeightFormat format = {};           // that a server holds it in
    float offset = 0;                   // added to a norm's weight
    std::optional<size_t> module = {};  // of the adapters
    bool is_cast = false;               // *weight has the values of a base that stays
    // In exact mode with adapters: the layer's product without them, and with them.
    std::shared_ptr<const PackedMatrix> exact_base = {}, exact_merged = {};
  };

  PolicyWeights(const ModelConfig& config, const WeightUse& use, const LayerOps& ops)
      : config_(config), use_(use), ops_(ops) {}

  Use& Bind(const std::string& name, at::Tensor& weight, at::Tensor& grad,
            LinearLayer* linear = nullptr, bool is_head = false);
  void BindLayer(int64_t index, DecoderLayer& layer);
  void BindAll();
  void FindStages();
  bool exact() const { return use_.numerics == Numerics::kExact; }
  ExactInputs ExactInputsOf(const Use& use) const;
  void RefreshWeight(Use& use);
  void SetPassOf(Use& use);
  std::shared_ptr<const PackedMatrix> Packed(const Use& use, const at::Tensor& weight) const;
  at::Tensor RoundedToBf16(const at::Tensor& weight);
  // The tensor of the model as servers have it without adapters: in their dtype.
  at::Tensor AsServed(const NamedParameter& parameter) const;

  const ModelConfig config_;
  const WeightUse use_;
  const LayerOps& ops_;
  Rounding rounding_ = Rounding::kNearest;  // of the weights as servers have them
  std::vector<NamedParameter> parameters_, base_;
  PolicyAdapters adapters_;
  LoraPass pass_;
  DecoderWeights decoder_;
  std::vector<Use> uses_;
  size_t binding_stage_ = 0;
  std::vector<std::vector<size_t>> stages_;   // [stage] its parameters
  std::vector<std::vector<size_t>> uses_of_;  // [stage] its uses
  std::vector<bool> is_current_;              // [stage] the weights of its uses are the masters'
  PassWatch watch_;
  at::Tensor rounding_buffer_;  // bf16, as large as the largest weight that was rounded through it
};

}  // namespace tandem::trainer
