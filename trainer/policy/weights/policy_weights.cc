#include "trainer/policy/weights/policy_weights.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/status_macros.h"
#include "common/tensor/linear.h"
#include "trainer/policy/cpu/exact_ops.h"
#include "trainer/policy/tensor_memory.h"
#include "trainer/policy/weights/fake_quantised.h"

namespace tandem::trainer {

absl::StatusOr<std::unique_ptr<PolicyWeights>> PolicyWeights::Create(const ModelConfig& config,
                                                                     const WeightUse& use,
                                                                     const LayerOps& ops) {
  std::unique_ptr<PolicyWeights> weights(new PolicyWeights(config, use, ops));
  weights->decoder_.config = config;
  weights->decoder_.rotary = RotaryEmbeddings(config);
  TANDEM_ASSIGN_OR_RETURN(weights->adapters_,
                          PolicyAdapters::Create(config, use.lora, ops.device(), use.trainable));
  const bool has_adapters = weights->adapters_.enabled();
  for (const TensorSpec& spec : ModelTensors(config, DType::kF32)) {
    at::Tensor master = at::empty(spec.shape, at::TensorOptions(at::kFloat).device(ops.device()));
    SetStored(master, false);
    master.requires_grad_(use.trainable && !has_adapters);
    (has_adapters ? weights->base_ : weights->parameters_)
        .push_back({spec.name, std::move(master)});
  }
  if (has_adapters) weights->parameters_ = weights->adapters_.parameters();
  weights->BindAll();
  weights->FindStages();
  return weights;
}

void PolicyWeights::WeightsChanged(Rounding rounding) {
  rounding_ = rounding;
  is_current_.assign(is_current_.size(), false);
}

void PolicyWeights::BaseChanged() {
  for (Use& use : uses_) {
    use.is_cast = false;
    use.exact_base.reset();
  }
  is_current_.assign(is_current_.size(), false);
}

// ModelTensors, which made the parameters, has every name that is bound.
PolicyWeights::Use& PolicyWeights::Bind(const std::string& name, at::Tensor& weight,
                                        at::Tensor& grad, LinearLayer* linear, bool is_head) {
  const std::vector<NamedParameter>& of = model();
  const auto found = std::ranges::find(of, name, &NamedParameter::name);
  TANDEM_CHECK(found != of.end());
  uses_.push_back({.parameter = static_cast<size_t>(found - of.begin()),
                   .weight = &weight,
                   .grad = &grad,
                   .linear = linear,
                   .is_head = is_head,
                   .stage = binding_stage_});
  return uses_.back();
}

void PolicyWeights::BindLayer(int64_t index, DecoderLayer& layer) {
  const std::string prefix = absl::StrCat("model.layers.", index, ".");
  const auto norm = [&](std::string_view name, NormLayer& target) {
    if (name.empty()) return;
    Bind(absl::StrCat(prefix, std::string(name), ".weight"), target.weight, target.weight_grad)
        .offset = config_.norm_offset;
  };
  const LayerFormats formats =
      use_.plan.layers.empty() ? LayerFormats() : use_.plan.layers[static_cast<size_t>(index)];
  Site site = Site::kQkv;
  const auto linear = [&](const char* name, bool has_bias, LinearLayer& target,
                          ParameterRows rows = {}) {
    Use& use =
        Bind(absl::StrCat(prefix, name, ".weight"), target.weight, target.weight_grad, &target);
    use.rows = rows;
    use.format = formats.at(site);
    use.module = adapters_.Find(absl::StrCat(prefix, name, ".weight"));
    if (!has_bias) return;
    Bind(absl::StrCat(prefix, name, ".bias"), target.bias, target.bias_grad).rows = rows;
  };
  norm(config_.norms.attention, layer.attention_norm);
  const int64_t queries = config_.num_heads * config_.head_dim;
  const int64_t keys = config_.num_kv_heads * config_.head_dim;
  const bool qkv_bias = config_.attention_qkv_bias;
  if (config_.fused_qkv) {
    const char* const name = "self_attn.qkv_proj";
    linear(name, qkv_bias, layer.q_proj, {0, queries});
    linear(name, qkv_bias, layer.k_proj, {queries, queries + keys});
    linear(name, qkv_bias, layer.v_proj, {queries + keys, queries + 2 * keys});
  } else {
    linear("self_attn.q_proj", qkv_bias, layer.q_proj);
    linear("self_attn.k_proj", qkv_bias, layer.k_proj);
    linear("self_attn.v_proj", qkv_bias, layer.v_proj);
  }
  site = Site::kO;
  linear("self_attn.o_proj", config_.attention_o_bias, layer.o_proj);
  if (config_.qk_norm != QkNorm::kNone) {
    norm("self_attn.q_norm", layer.q_norm);
    norm("self_attn.k_norm", layer.k_norm);
  }
  norm(config_.norms.attention_out, layer.attention_out_norm);
  norm(config_.norms.mlp, layer.mlp_norm);
  const int64_t inner = config_.intermediate_size;
  site = Site::kGateUp;
  if (config_.fused_gate_up) {
    linear("mlp.gate_up_proj", config_.mlp_bias, layer.gate_proj, {0, inner});
    linear("mlp.gate_up_proj", config_.mlp_bias, layer.up_proj, {inner, 2 * inner});
  } else {
    linear("mlp.gate_proj", config_.mlp_bias, layer.gate_proj);
    linear("mlp.up_proj", config_.mlp_bias, layer.up_proj);
  }
  site = Site::kDown;
  linear("mlp.down_proj", config_.mlp_bias, layer.down_proj);
  norm(config_.norms.mlp_out, layer.mlp_out_norm);
}

void PolicyWeights::BindAll() {
  const std::string embedding = "model.embed_tokens.weight";
  binding_stage_ = static_cast<size_t>(config_.num_layers) + 1;
  Bind(embedding, decoder_.embedding, decoder_.embedding_grad).format = use_.plan.head;
  decoder_.layers.resize(static_cast<size_t>(config_.num_layers));
  for (int64_t i = 0; i < config_.num_layers; ++i) {
    binding_stage_ = static_cast<size_t>(config_.num_layers - i);
    BindLayer(i, decoder_.layers[static_cast<size_t>(i)]);
  }
  binding_stage_ = 0;
  Bind("model.norm.weight", decoder_.final_norm.weight, decoder_.final_norm.weight_grad).offset =
      config_.norm_offset;
  decoder_.final_norm.in_fp32 = true;
  const std::string head = config_.tie_word_embeddings ? embedding : "lm_head.weight";
  Use& of_head = Bind(head, decoder_.head.weight, decoder_.head.weight_grad, &decoder_.head,
                      /*is_head=*/true);
  of_head.format = use_.plan.head;
  of_head.module = adapters_.Find(head);
  decoder_.head.softcap = config_.logit_softcap;
}

void PolicyWeights::FindStages() {
  const auto count = static_cast<size_t>(config_.num_layers + 2);
  stages_.resize(count);
  uses_of_.resize(count);
  is_current_.resize(count, false);
  for (size_t i = 0; i < uses_.size(); ++i) {
    std::vector<size_t>& of_stage = stages_[uses_[i].stage];
    uses_of_[uses_[i].stage].push_back(i);
    // A parameter that joins projections has several uses, one after the other.
    const auto add = [&](size_t parameter) {
      if (std::ranges::find(of_stage, parameter) == of_stage.end()) of_stage.push_back(parameter);
    };
    if (!adapters_.enabled()) {
      add(uses_[i].parameter);
    } else if (uses_[i].module) {
      add(2 * *uses_[i].module);
      add(2 * *uses_[i].module + 1);
    }
  }
}

// Casts and packed weights are made here, once per weight change.
void PolicyWeights::BeginStage(Pass pass, size_t stage) {
  if (watch_.begin) watch_.begin(pass, stage);
  if (!is_current_[stage]) {
    for (const size_t use : uses_of_[stage]) RefreshWeight(uses_[use]);
    is_current_[stage] = true;
  }
  if (!adapters_.enabled()) return;
  for (const size_t use : uses_of_[stage]) {
    if (uses_[use].linear != nullptr) SetPassOf(uses_[use]);
  }
}

// The layer's adapter, and in exact mode its product with or without it.
void PolicyWeights::SetPassOf(Use& use) {
  use.linear->lora.pass = pass_;
  if (!exact()) return;
  const bool merged = pass_.enabled && use.module.has_value();
  auto& product = merged ? use.exact_merged : use.exact_base;
  if (product == nullptr) {
    const NamedParameter& parameter = model()[use.parameter];
    at::Tensor whole = AsServed(parameter);
    if (merged) whole = adapters_.Merged(*use.module, whole);
    if (merged && use_.dtype == ComputeDType::kBf16) {
      whole = ops_.CastToBf16(parameter.name, whole, rounding_);
    }
    product = Packed(use, use.rows.Of(whole));
  }
  use.linear->exact = product;
}

void PolicyWeights::EndStage(Pass pass, size_t stage) {
  if (watch_.masters_come_and_go) {
    for (const size_t use : uses_of_[stage]) {
      if (adapters_.enabled()) {  // the base stays
        uses_[use].exact_merged.reset();
        continue;
      }
      *uses_[use].weight = at::Tensor();
      if (uses_[use].linear == nullptr) continue;
      uses_[use].linear->exact.reset();
      uses_[use].linear->backward_weight.reset();
    }
    is_current_[stage] = false;
  }
  if (watch_.end) watch_.end(pass, stage);
}

LayerWatch PolicyWeights::Layers(Pass pass) {
  const auto stage = [this](int64_t layer) {
    return static_cast<size_t>(config_.num_layers - layer);  // after the layers: kEmbedding
  };
  return {[=, this](int64_t layer) { BeginStage(pass, stage(layer)); },
          [=, this](int64_t layer) { EndStage(pass, stage(layer)); }};
}

// bf16 values in fp32, [weight's shape]. They go through one buffer, because a temporary of each weight
// would leave a hole in the heap: glibc 2.36 does not find an aligned block of the same size in it.
at::Tensor PolicyWeights::RoundedToBf16(const at::Tensor& weight) {
  if (!rounding_buffer_.defined() || rounding_buffer_.numel() < weight.numel()) {
    rounding_buffer_ = at::empty({weight.numel()}, at::kBFloat16);
  }
  return rounding_buffer_.narrow(0, 0, weight.numel())
      .view(weight.sizes())
      .copy_(weight)
      .to(at::kFloat);
}

// How the server takes the inputs of this matrix.
ExactInputs PolicyWeights::ExactInputsOf(const Use& use) const {
  if (use_.plan.int8_rows(use.format))
    return use.is_head ? ExactInputs::kInt16 : ExactInputs::kInt8;
  return use_.dtype == ComputeDType::kBf16 && !use.is_head ? ExactInputs::kBf16
                                                           : ExactInputs::kAsTheyAre;
}

std::shared_ptr<const PackedMatrix> PolicyWeights::Packed(const Use& use,
                                                          const at::Tensor& weight) const {
  return std::make_shared<const PackedMatrix>(PackWeight(weight, use.format));
}

at::Tensor PolicyWeights::AsServed(const NamedParameter& parameter) const {
  const at::Tensor master = parameter.master.detach();
  if (use_.dtype != ComputeDType::kBf16) return master;
  // Servers that load the base round it to nearest.
  return ops_.CastToBf16(parameter.name, master,
                         adapters_.enabled() ? Rounding::kNearest : rounding_);
}

// The embedding, norms and biases are read in fp32; for kExact, with the values that a server has.
// On the CPU the head is, too: its logits are fp32, and its gradients are made like those of other
// layers.
void PolicyWeights::RefreshWeight(Use& use) {
  const bool on_cpu = use_.device == Device::kCpu, emulated = on_cpu && !HasFastBf16();
  const bool bf16 = use_.dtype == ComputeDType::kBf16;
  const bool in_bf16 = bf16 && use.linear != nullptr && !(on_cpu && use.is_head);
  const NamedParameter& parameter = model()[use.parameter];
  if (use.module) adapters_.Bind(*use.module, use.rows, *use.linear);
  use.exact_merged.reset();
  if (use.is_cast) return;  // a base, which stays
  use.is_cast = adapters_.enabled();
  const at::Tensor master = use.rows.Of(parameter.master.detach());
  at::Tensor weight = master;
  const bool quantised = use.format.scheme != WeightScheme::kWide;
  if (bf16 && (exact() || quantised)) {
    weight = use.rows.Of(AsServed(parameter));
  } else if (in_bf16) {
    weight = emulated ? RoundedToBf16(weight) : weight.to(at::kBFloat16);
  }
  if (on_cpu && exact() && use.linear != nullptr) {
    use.linear->exact_inputs = ExactInputsOf(use);
    if (!adapters_.enabled()) use.linear->exact = Packed(use, weight);
  }
  if (quantised) {
    weight = FakeQuantised(weight, use.format);
    if (in_bf16) weight = emulated ? RoundedToBf16(weight) : weight.to(at::kBFloat16);
  }
  if (on_cpu && use.is_head && use_.trainable && bf16 && !emulated) {
    use.linear->backward_weight = (quantised ? weight : master).to(at::kBFloat16);
  }
  if (in_bf16) use.linear->round_inputs = emulated;
  *use.weight = in_bf16 && !emulated ? weight : weight.to(at::kFloat);
  if (use.offset != 0) *use.weight = use.weight->add(use.offset);
}

void PolicyWeights::PrepareGrads() {
  for (const NamedParameter& parameter : parameters_) {
    at::Tensor& grad = parameter.master.mutable_grad();
    if (!grad.defined()) grad = at::zeros_like(parameter.master);
  }
  for (const Use& use : uses_) {
    if (!adapters_.enabled()) {
      *use.grad = use.rows.Of(parameters_[use.parameter].master.grad());
    } else if (use.module) {
      adapters_.BindGrads(*use.module, use.rows, *use.linear);
    } else if (use.linear == nullptr && use.weight->dim() == 1 && !use.grad->defined()) {
      // Norms and biases stay, and their kernels write gradients all the same: nobody reads these.
      *use.grad = at::zeros_like(*use.weight);
    }
  }
}

}  // namespace tandem::trainer
