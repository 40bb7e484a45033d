#include "trainer/policy/policy.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <functional>
#include <optional>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/status_macros.h"
#include "common/tensor/host_tensor_conversion.h"
#include "common/tensor/linear.h"
#include "common/tensor/torch_status.h"
#include "trainer/policy/chunked_logprobs.h"
#include "trainer/policy/cpu/cpu_layer_ops.h"
#include "trainer/policy/cpu/exact_ops.h"
#include "trainer/policy/cuda/device_layer_ops.h"
#include "trainer/policy/decoder.h"
#include "trainer/policy/fake_quantised.h"
#include "trainer/policy/row_targets.h"
#include "trainer/policy/tensor_memory.h"

namespace tandem::trainer {
namespace {

// 400 MB of a row's logits, between its forward and backward pass.
constexpr int64_t kMaxKeptLogits = 100'000'000;

// The inputs that the kernels of a device take.
absl::Status CheckSizes(const ModelConfig& config, ComputeDType dtype, bool exact) {
  if (exact) {
    TANDEM_RETURN_IF_ERROR(CheckPlainDecoder(config, "trainer.device cuda with numerics exact"));
  }
  const bool flash = dtype == ComputeDType::kBf16 || exact;
  if (flash && (config.head_dim % 8 != 0 || config.head_dim > 256)) {
    return Unimplemented(
        "trainer.device cuda in bf16 or with numerics exact, and heads of ", config.head_dim,
        " elements: its attention takes multiples of 8 up to 256; use dtype fp32 or device cpu");
  }
  if (exact && (config.hidden_size % 8 != 0 || config.intermediate_size % 8 != 0)) {
    return Unimplemented("trainer.device cuda with numerics exact and linear layers of ",
                         config.hidden_size, " and ", config.intermediate_size,
                         " inputs: its products take multiples of 8; use device cpu");
  }
  const bool norms_projections = config.qk_norm == QkNorm::kPerProjection;
  const int64_t widest = std::max(
      config.hidden_size, norms_projections ? config.num_heads * config.head_dim : int64_t{0});
  if (widest > cuda::kMaxNormWidth) {
    return Unimplemented("trainer.device cuda with norms of ", widest,
                         " elements: its kernels take ", cuda::kMaxNormWidth, " at most");
  }
  return absl::OkStatus();
}

ExactKv KvOf(ComputeDType dtype, KvFormat kv) {
  if (kv == KvFormat::kInt8) return ExactKv::kInt8;
  if (kv == KvFormat::kFp8E4m3) return ExactKv::kFp8E4m3;
  return dtype == ComputeDType::kBf16 ? ExactKv::kBf16 : ExactKv::kFp32;
}

absl::StatusOr<std::unique_ptr<LayerOps>> MakeOps(const ModelConfig& config, ComputeDType dtype,
                                                  Numerics numerics, Device device, KvFormat kv) {
  const bool exact = numerics == Numerics::kExact;
  if (device == Device::kCpu) {
    if (exact) return std::make_unique<ExactCpuLayerOps>(KvOf(dtype, kv));
    return std::make_unique<CpuLayerOps>();
  }
  TANDEM_RETURN_IF_ERROR(CheckSizes(config, dtype, exact));
  return MakeDeviceLayerOps(dtype, exact);
}

// Rows of hidden states, before and after the final norm, [R, E].
struct FinalRows {
  at::Tensor hidden;
  Normed normed;
};

// Everything one scored row keeps for its backward pass.
struct ScoreTape {
  PackedRow row;
  PassOptions options;
  Targets targets;
  DecoderTape decoder;
  FinalRows predicting, asked;  // the targets, and options.hidden_at
  ChosenLogprobs chosen;
};

// The whole backward pass as one node of the graph. Gradients go straight into the masters' grad
// tensors (they add up over rows without a second copy), so the node has no outgoing edges.
class ScoreNode : public torch::autograd::Node {
 public:
  // Gradients of the log-probs, entropies and hidden states; undefined where there is none.
  using Backward = std::function<void(ScoreTape&, torch::autograd::variable_list&)>;
  ScoreNode(std::unique_ptr<ScoreTape> tape, Backward backward)
      : tape_(std::move(tape)), backward_(std::move(backward)) {}

  std::string name() const override { return "PolicyScoreBackward"; }

  torch::autograd::variable_list apply(torch::autograd::variable_list&& grads) override {
    TORCH_CHECK(tape_ != nullptr, "the log-probs of a row can be differentiated only once");
    if (std::ranges::any_of(grads, [](const at::Tensor& grad) { return grad.defined(); })) {
      const at::NoGradGuard no_grad;
      backward_(*tape_, grads);
    }
    tape_.reset();
    return {};
  }

  void release_variables() override { tape_.reset(); }

 private:
  std::unique_ptr<ScoreTape> tape_;
  Backward backward_;
};

}  // namespace

struct Policy::Impl {
  // Where a parameter is used: the tensor the decoder reads and the gradient it adds to.
  struct Use {
    size_t parameter;
    at::Tensor* weight;
    at::Tensor* grad;
    LinearLayer* linear;                // set for a linear layer's weight
    bool is_head;                       // whose product is fp32 whatever the compute dtype
    size_t stage;                       // of a pass that reads the weight and adds to the gradient
    ParameterRows rows;                 // of the parameter
    WeightFormat format;                // that a server holds it in
    float offset;                       // added to a norm's weight
    std::optional<size_t> module = {};  // of the adapters
    bool is_cast = false;               // *weight has the values of a base that stays
    // In exact mode with adapters: the layer's product without them, and with them.
    std::shared_ptr<const PackedMatrix> exact_base = {}, exact_merged = {};
  };

  ModelConfig config;
  std::unique_ptr<LayerOps> ops;
  Device device = Device::kCpu;
  ComputeDType dtype = ComputeDType::kFp32;
  bool trainable = false;
  QuantisationPlan plan;  // no layers: nothing is quantised
  Numerics numerics = Numerics::kFast;
  Rounding rounding = Rounding::kNearest;  // of the weights as servers have them
  std::vector<NamedParameter> parameters;  // that are trained: the model's, or the adapters'
  std::vector<NamedParameter> base;        // with adapters: the model's
  PolicyAdapters adapters;
  LoraPass pass;  // under way
  DecoderWeights weights;
  std::vector<Use> uses;
  size_t binding_stage = 0;
  std::vector<std::vector<size_t>> stages;   // [stage] its parameters
  std::vector<std::vector<size_t>> uses_of;  // [stage] its uses
  std::vector<bool> is_current;              // [stage] the weights of its uses are the masters'
  PassWatch watch;
  bool checkpoint_activations = false;
  at::Tensor rounding_buffer;  // bf16, as large as the largest weight that was rounded through it

  // The tensors of the model, in ModelTensors order.
  const std::vector<NamedParameter>& model() const {
    return adapters.enabled() ? base : parameters;
  }
  Use& Bind(const std::string& name, at::Tensor& weight, at::Tensor& grad,
            LinearLayer* linear = nullptr, bool is_head = false);
  void BindLayer(int64_t index, DecoderLayer& layer);
  void BindAll();
  void FindStages();
  void BeginStage(Pass pass, size_t stage);
  void EndStage(Pass pass, size_t stage);
  LayerWatch Layers(Pass pass);
  ExactInputs ExactInputsOf(const Use& use) const;
  void RefreshWeight(Use& use);
  void RefreshExact(Use& use, const at::Tensor& weight);
  at::Tensor RoundedToBf16(const at::Tensor& weight);
  at::Tensor AsPushed(const NamedParameter& parameter) const {
    return ops->CastToBf16(parameter.name, parameter.master.detach(), rounding);
  }
  void PrepareGrads();
  FinalRows TakeFinal(const at::Tensor& hidden, std::span<const int64_t> rows) const;
  std::unique_ptr<ScoreTape> Forward(const PackedRow& row, Targets targets,
                                     const PassOptions& options);
  at::Tensor LogprobsBackward(ScoreTape& tape, const at::Tensor& logprobs_grad,
                              const at::Tensor& entropies_grad) const;
  void Backward(ScoreTape& tape, torch::autograd::variable_list& grads);
  void AttachBackward(std::unique_ptr<ScoreTape> tape, TokenScores& scores);
};

// ModelTensors, which made the parameters, has every name that is bound.
Policy::Impl::Use& Policy::Impl::Bind(const std::string& name, at::Tensor& weight, at::Tensor& grad,
                                      LinearLayer* linear, bool is_head) {
  const std::vector<NamedParameter>& of = model();
  const auto found = std::ranges::find(of, name, &NamedParameter::name);
  TANDEM_CHECK(found != of.end());
  uses.push_back({static_cast<size_t>(found - of.begin()),
                  &weight,
                  &grad,
                  linear,
                  is_head,
                  binding_stage,
                  ParameterRows(),
                  {},
                  0});
  return uses.back();
}

void Policy::Impl::BindLayer(int64_t index, DecoderLayer& layer) {
  const std::string prefix = absl::StrCat("model.layers.", index, ".");
  const auto norm = [&](std::string_view name, NormLayer& target) {
    if (name.empty()) return;
    Bind(absl::StrCat(prefix, std::string(name), ".weight"), target.weight, target.weight_grad)
        .offset = config.norm_offset;
  };
  const LayerFormats formats =
      plan.layers.empty() ? LayerFormats() : plan.layers[static_cast<size_t>(index)];
  Site site = Site::kQkv;
  const auto linear = [&](const char* name, bool has_bias, LinearLayer& target,
                          ParameterRows rows = {}) {
    Use& use =
        Bind(absl::StrCat(prefix, name, ".weight"), target.weight, target.weight_grad, &target);
    use.rows = rows;
    use.format = formats.at(site);
    use.module = adapters.Find(absl::StrCat(prefix, name, ".weight"));
    if (!has_bias) return;
    Bind(absl::StrCat(prefix, name, ".bias"), target.bias, target.bias_grad).rows = rows;
  };
  norm(config.norms.attention, layer.attention_norm);
  const int64_t queries = config.num_heads * config.head_dim;
  const int64_t keys = config.num_kv_heads * config.head_dim;
  const bool qkv_bias = config.attention_qkv_bias;
  if (config.fused_qkv) {
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
  linear("self_attn.o_proj", config.attention_o_bias, layer.o_proj);
  if (config.qk_norm != QkNorm::kNone) {
    norm("self_attn.q_norm", layer.q_norm);
    norm("self_attn.k_norm", layer.k_norm);
  }
  norm(config.norms.attention_out, layer.attention_out_norm);
  norm(config.norms.mlp, layer.mlp_norm);
  const int64_t inner = config.intermediate_size;
  site = Site::kGateUp;
  if (config.fused_gate_up) {
    linear("mlp.gate_up_proj", config.mlp_bias, layer.gate_proj, {0, inner});
    linear("mlp.gate_up_proj", config.mlp_bias, layer.up_proj, {inner, 2 * inner});
  } else {
    linear("mlp.gate_proj", config.mlp_bias, layer.gate_proj);
    linear("mlp.up_proj", config.mlp_bias, layer.up_proj);
  }
  site = Site::kDown;
  linear("mlp.down_proj", config.mlp_bias, layer.down_proj);
  norm(config.norms.mlp_out, layer.mlp_out_norm);
}

void Policy::Impl::BindAll() {
  const std::string embedding = "model.embed_tokens.weight";
  binding_stage = static_cast<size_t>(config.num_layers) + 1;
  Bind(embedding, weights.embedding, weights.embedding_grad).format = plan.head;
  weights.layers.resize(static_cast<size_t>(config.num_layers));
  for (int64_t i = 0; i < config.num_layers; ++i) {
    binding_stage = static_cast<size_t>(config.num_layers - i);
    BindLayer(i, weights.layers[static_cast<size_t>(i)]);
  }
  binding_stage = 0;
  Bind("model.norm.weight", weights.final_norm.weight, weights.final_norm.weight_grad).offset =
      config.norm_offset;
  weights.final_norm.in_fp32 = true;
  Bind(config.tie_word_embeddings ? embedding : "lm_head.weight", weights.head.weight,
       weights.head.weight_grad, &weights.head, /*is_head=*/true)
      .format = plan.head;
  weights.head.softcap = config.logit_softcap;
}

void Policy::Impl::FindStages() {
  const auto count = static_cast<size_t>(config.num_layers + 2);
  stages.resize(count);
  uses_of.resize(count);
  is_current.resize(count, false);
  for (size_t i = 0; i < uses.size(); ++i) {
    std::vector<size_t>& of_stage = stages[uses[i].stage];
    uses_of[uses[i].stage].push_back(i);
    // A parameter that joins projections has several uses, one after the other.
    const auto add = [&](size_t parameter) {
      if (std::ranges::find(of_stage, parameter) == of_stage.end()) of_stage.push_back(parameter);
    };
    if (!adapters.enabled()) {
      add(uses[i].parameter);
    } else if (uses[i].module) {
      add(2 * *uses[i].module);
      add(2 * *uses[i].module + 1);
    }
  }
}

// Casts and packed weights are made here, once per weight change.
void Policy::Impl::BeginStage(Pass pass, size_t stage) {
  if (watch.begin) watch.begin(pass, stage);
  if (!is_current[stage]) {
    for (const size_t use : uses_of[stage]) RefreshWeight(uses[use]);
    is_current[stage] = true;
  }
  if (!adapters.enabled() || numerics != Numerics::kExact) return;
  for (const size_t use : uses_of[stage]) {
    if (uses[use].linear == nullptr) continue;
    const bool merged = this->pass.enabled && uses[use].module.has_value();
    uses[use].linear->exact = merged ? uses[use].exact_merged : uses[use].exact_base;
  }
}

void Policy::Impl::EndStage(Pass pass, size_t stage) {
  if (watch.masters_come_and_go) {
    for (const size_t use : uses_of[stage]) {
      if (adapters.enabled()) {  // the base stays
        uses[use].exact_merged.reset();
        continue;
      }
      *uses[use].weight = at::Tensor();
      if (uses[use].linear == nullptr) continue;
      uses[use].linear->exact.reset();
      uses[use].linear->backward_weight.reset();
    }
    is_current[stage] = false;
  }
  if (watch.end) watch.end(pass, stage);
}

LayerWatch Policy::Impl::Layers(Pass pass) {
  const auto stage = [this](int64_t layer) {
    return static_cast<size_t>(config.num_layers - layer);  // after the layers: kEmbedding
  };
  return {[=, this](int64_t layer) { BeginStage(pass, stage(layer)); },
          [=, this](int64_t layer) { EndStage(pass, stage(layer)); }};
}

// bf16 values in fp32, [weight's shape]. They go through one buffer, because a temporary of each weight
// would leave a hole in the heap: glibc 2.36 does not find an aligned block of the same size in it.
at::Tensor Policy::Impl::RoundedToBf16(const at::Tensor& weight) {
  if (!rounding_buffer.defined() || rounding_buffer.numel() < weight.numel()) {
    rounding_buffer = at::empty({weight.numel()}, at::kBFloat16);
  }
  return rounding_buffer.narrow(0, 0, weight.numel())
      .view(weight.sizes())
      .copy_(weight)
      .to(at::kFloat);
}

// How the server takes the inputs of this matrix.
ExactInputs Policy::Impl::ExactInputsOf(const Use& use) const {
  if (plan.int8_rows(use.format)) return use.is_head ? ExactInputs::kInt16 : ExactInputs::kInt8;
  return dtype == ComputeDType::kBf16 && !use.is_head ? ExactInputs::kBf16
                                                      : ExactInputs::kAsTheyAre;
}

// `weight` is what a server would have without adapters.
void Policy::Impl::RefreshExact(Use& use, const at::Tensor& weight) {
  use.linear->exact_inputs = ExactInputsOf(use);
  const auto packed = [&](const at::Tensor& of) {
    return std::make_shared<const PackedMatrix>(PackWeight(of, use.format));
  };
  if (!adapters.enabled()) {
    use.linear->exact = packed(weight);
    return;
  }
  if (use.exact_base == nullptr) use.exact_base = packed(weight);
  if (!use.module) return;
  // The adapter is of the whole parameter, of which the layer may have some rows.
  const NamedParameter& parameter = model()[use.parameter];
  const at::Tensor whole =
      dtype == ComputeDType::kBf16 ? AsPushed(parameter) : parameter.master.detach();
  use.exact_merged = packed(use.rows.Of(adapters.Merged(*use.module, whole)));
}

// The embedding, norms and biases are read in fp32; for kExact, with the values that a server has.
// On the CPU the head is, too: its logits are fp32, and its gradients are made like those of other
// layers.
void Policy::Impl::RefreshWeight(Use& use) {
  const bool on_cpu = device == Device::kCpu, emulated = on_cpu && !HasFastBf16();
  const bool bf16 = dtype == ComputeDType::kBf16, exact = numerics == Numerics::kExact;
  const bool in_bf16 = bf16 && use.linear != nullptr && !(on_cpu && use.is_head);
  const NamedParameter& parameter = model()[use.parameter];
  if (use.module) adapters.Bind(*use.module, use.rows, *use.linear);
  // A base that stays is cast once; merged weights follow the adapters.
  if (use.is_cast && !(exact && use.module)) return;
  use.is_cast = adapters.enabled();
  at::Tensor weight = use.rows.Of(parameter.master.detach());
  if (on_cpu && use.is_head && trainable && bf16 && !emulated) {
    use.linear->backward_weight = weight.to(at::kBFloat16);
  }
  const bool quantised = use.format.scheme != WeightScheme::kWide;
  if (bf16 && (exact || quantised)) {
    weight = use.rows.Of(AsPushed(parameter));
  } else if (in_bf16) {
    weight = emulated ? RoundedToBf16(weight) : weight.to(at::kBFloat16);
  }
  if (on_cpu && exact && use.linear != nullptr) {
    RefreshExact(use, weight);
  }
  if (quantised) {
    weight = FakeQuantised(weight, use.format);
    if (in_bf16) weight = emulated ? RoundedToBf16(weight) : weight.to(at::kBFloat16);
  }
  if (in_bf16) use.linear->round_inputs = emulated;
  *use.weight = in_bf16 && !emulated ? weight : weight.to(at::kFloat);
  if (use.offset != 0) *use.weight = use.weight->add(use.offset);
}

void Policy::Impl::PrepareGrads() {
  for (const NamedParameter& parameter : parameters) {
    at::Tensor& grad = parameter.master.mutable_grad();
    if (!grad.defined()) grad = at::zeros_like(parameter.master);
  }
  for (const Use& use : uses) {
    if (!adapters.enabled()) {
      *use.grad = use.rows.Of(parameters[use.parameter].master.grad());
    } else if (use.module) {
      adapters.BindGrads(*use.module, use.rows, *use.linear);
    } else if (use.linear == nullptr && use.weight->dim() == 1 && !use.grad->defined()) {
      // Norms and biases stay, and their kernels write gradients all the same: nobody reads these.
      *use.grad = at::zeros_like(*use.weight);
    }
  }
}

FinalRows Policy::Impl::TakeFinal(const at::Tensor& hidden, std::span<const int64_t> rows) const {
  FinalRows final{.hidden = ops->TakeRows(hidden, rows)};
  final.normed = ops->RmsNorm(weights.final_norm, final.hidden, config.rms_norm_eps);
  return final;
}

std::unique_ptr<ScoreTape> Policy::Impl::Forward(const PackedRow& row, Targets targets,
                                                 const PassOptions& options) {
  auto tape = std::make_unique<ScoreTape>();
  tape->targets = std::move(targets);
  tape->options = options;
  if (options.with_gradient) tape->row = row;
  tape->decoder.inputs_only = checkpoint_activations;
  pass = options.lora;
  const at::Tensor hidden =
      DecoderForward(*ops, weights, row, pass, options.with_gradient ? &tape->decoder : nullptr,
                     Layers(Pass::kForward));
  BeginStage(Pass::kForward, 0);
  if (!tape->targets.positions.empty()) {
    tape->predicting = TakeFinal(hidden, tape->targets.sources);
    tape->chosen = ChosenTokenLogprobs(
        *ops, tape->predicting.normed.value, weights.head, tape->targets.tokens,
        options.temperature, options.with_gradient ? kMaxKeptLogits : 0, tape->targets.support);
  }
  if (!options.hidden_at.empty()) tape->asked = TakeFinal(hidden, options.hidden_at);
  EndStage(Pass::kForward, 0);
  return tape;
}

// The gradient of the normed rows that predict targets.
at::Tensor Policy::Impl::LogprobsBackward(ScoreTape& tape, const at::Tensor& logprobs_grad,
                                          const at::Tensor& entropies_grad) const {
  const std::vector<int64_t>& positions = tape.targets.positions;
  const auto of_targets = [&](const at::Tensor& of_row) {
    return OfTargets(of_row, positions, ops->device());
  };
  return ChosenTokenLogprobsBackward(
      *ops, tape.predicting.normed.value, weights.head, tape.targets.tokens,
      tape.options.temperature, tape.chosen,
      logprobs_grad.defined() ? of_targets(logprobs_grad) : at::zeros_like(tape.chosen.logprobs),
      tape.targets.support, entropies_grad.defined() ? of_targets(entropies_grad) : at::Tensor());
}

void Policy::Impl::Backward(ScoreTape& tape, torch::autograd::variable_list& grads) {
  PrepareGrads();
  pass = tape.options.lora;
  const int64_t num_tokens = tape.row.num_tokens();
  at::Tensor hidden_grad;
  const auto add = [&](const FinalRows& rows, std::span<const int64_t> places,
                       const at::Tensor& normed_grad) {
    at::Tensor of_rows;
    ops->RmsNormBackward(weights.final_norm, rows.hidden, rows.normed.rstd, normed_grad, of_rows);
    const at::Tensor spread = ops->SpreadRows(of_rows, places, num_tokens);
    hidden_grad = hidden_grad.defined() ? hidden_grad.add_(spread) : spread;
  };
  BeginStage(Pass::kBackward, 0);
  if (grads[0].defined() || grads[1].defined()) {
    add(tape.predicting, tape.targets.sources, LogprobsBackward(tape, grads[0], grads[1]));
  }
  if (grads[2].defined()) add(tape.asked, tape.options.hidden_at, grads[2].contiguous());
  EndStage(Pass::kBackward, 0);
  DecoderBackward(*ops, weights, tape.row, pass, tape.decoder, hidden_grad,
                  Layers(Pass::kBackward));
}

void Policy::Impl::AttachBackward(std::unique_ptr<ScoreTape> tape, TokenScores& scores) {
  const PassOptions options = tape->options;
  const std::shared_ptr<ScoreNode> node(
      new ScoreNode(std::move(tape), [this](ScoreTape& t, auto& grads) { Backward(t, grads); }),
      torch::autograd::deleteNode);
  const auto attach = [&](at::Tensor& result, bool has_gradient) {
    // An input that nobody differentiates keeps its number.
    node->add_input_metadata(result.defined() ? result : at::zeros({}));
    if (result.defined() && has_gradient) {
      const auto number = static_cast<uint32_t>(node->num_inputs() - 1);
      torch::autograd::impl::set_gradient_edge(result, {node, number});
    }
  };
  attach(scores.logprobs, true);
  attach(scores.entropies, options.entropy_gradient);
  attach(scores.hidden, true);
}

absl::StatusOr<at::Tensor> AsMaster(const HostTensor& tensor) {
  TANDEM_ASSIGN_OR_RETURN(const at::Tensor view, ViewAsTensor(tensor));
  if (!view.is_floating_point()) {
    return InvalidArgument(tensor.spec.ToString(), ": a parameter must have a float dtype");
  }
  return view.to(at::kFloat).contiguous();
}

Policy::Policy(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Policy::~Policy() = default;

absl::StatusOr<std::unique_ptr<Policy>> Policy::CreateUnfilled(const ModelConfig& config,
                                                               ComputeDType dtype, bool trainable,
                                                               Numerics numerics, Device device,
                                                               const PolicyForm& form) {
  const QuantisationPlan& plan = form.quantised;
  if ((plan.quantises() || plan.kv != KvFormat::kDtype) && numerics == Numerics::kExact &&
      device == Device::kCuda) {
    return Unimplemented(
        "trainer.device cuda with numerics exact and fake_quantise: use device cpu, or numerics "
        "fast");
  }
  return CatchTorch("policy", [&]() -> absl::StatusOr<std::unique_ptr<Policy>> {
    auto impl = std::make_unique<Impl>();
    TANDEM_ASSIGN_OR_RETURN(impl->ops, MakeOps(config, dtype, numerics, device, plan.kv));
    impl->device = device;
    impl->config = config;
    impl->dtype = dtype;
    impl->trainable = trainable;
    impl->plan = plan;
    impl->numerics = numerics;
    impl->weights.config = config;
    impl->weights.rotary = RotaryEmbeddings(config);
    TANDEM_ASSIGN_OR_RETURN(
        impl->adapters, PolicyAdapters::Create(config, form.lora, impl->ops->device(), trainable));
    const bool has_adapters = impl->adapters.enabled();
    for (const TensorSpec& spec : ModelTensors(config, DType::kF32)) {
      at::Tensor master =
          at::empty(spec.shape, at::TensorOptions(at::kFloat).device(impl->ops->device()));
      SetStored(master, false);
      master.requires_grad_(trainable && !has_adapters);
      (has_adapters ? impl->base : impl->parameters).push_back({spec.name, std::move(master)});
    }
    if (has_adapters) impl->parameters = impl->adapters.parameters();
    impl->BindAll();
    impl->FindStages();
    return std::unique_ptr<Policy>(new Policy(std::move(impl)));
  });
}

absl::StatusOr<std::unique_ptr<Policy>> Policy::Create(const ModelConfig& config,
                                                       const std::vector<HostTensor>& tensors,
                                                       ComputeDType dtype, bool trainable,
                                                       Numerics numerics, Device device,
                                                       const PolicyForm& form) {
  TANDEM_ASSIGN_OR_RETURN(std::unique_ptr<Policy> policy,
                          CreateUnfilled(config, dtype, trainable, numerics, device, form));
  const std::vector<NamedParameter>& parameters = policy->impl_->model();
  for (size_t i = 0; i < parameters.size(); ++i) {
    if (i >= tensors.size() || tensors[i].spec.name != parameters[i].name) {
      return InvalidArgument("tensor ", i, " of the model must be ", parameters[i].name);
    }
    TANDEM_ASSIGN_OR_RETURN(const at::Tensor values, AsMaster(tensors[i]));
    TANDEM_CHECK(values.sizes() == parameters[i].master.sizes());
    const at::NoGradGuard no_grad;
    SetStored(parameters[i].master, true);
    parameters[i].master.copy_(values);
  }
  return policy;
}

absl::StatusOr<TokenScores> Policy::Run(const PackedRow& row, const PassOptions& options) {
  TANDEM_CHECK(options.temperature > 0);
  TANDEM_CHECK(!options.with_gradient || impl_->trainable);
  TANDEM_ASSIGN_OR_RETURN(Targets targets, FindTargets(row, impl_->config.vocab_size));
  if (!options.logprobs) targets = {};
  const int64_t num_tokens = row.num_tokens();
  return CatchTorch(absl::StrCat("scoring a row of ", num_tokens, " tokens"), [&] {
    const at::NoGradGuard no_grad;
    TokenScores scores;
    if (options.logprobs) scores = {at::zeros({num_tokens}), at::zeros({num_tokens}), {}};
    if (targets.positions.empty() && options.hidden_at.empty()) return scores;
    std::unique_ptr<ScoreTape> tape = impl_->Forward(row, std::move(targets), options);
    const std::vector<int64_t>& positions = tape->targets.positions;
    if (!positions.empty()) {
      scores.logprobs = SpreadOverRow(tape->chosen.logprobs, positions, num_tokens);
      scores.entropies = SpreadOverRow(tape->chosen.entropies, positions, num_tokens);
    }
    if (!options.hidden_at.empty()) scores.hidden = tape->asked.normed.value.clone();
    if (options.with_gradient) impl_->AttachBackward(std::move(tape), scores);
    return scores;
  });
}

void Policy::WeightsChanged(Rounding rounding) {
  impl_->rounding = rounding;
  impl_->is_current.assign(impl_->is_current.size(), false);
}

const std::vector<NamedParameter>& Policy::base() const { return impl_->base; }

const PolicyAdapters& Policy::adapters() const { return impl_->adapters; }

void Policy::CheckpointActivations(bool checkpoint) { impl_->checkpoint_activations = checkpoint; }

void Policy::Watch(PassWatch watch) { impl_->watch = std::move(watch); }

void Policy::RunEmptyPass(Pass pass) {
  const size_t count = impl_->stages.size();
  for (size_t i = 0; i < count; ++i) {
    const size_t stage = pass == Pass::kForward ? count - 1 - i : i;
    if (impl_->watch.begin) impl_->watch.begin(pass, stage);
    if (impl_->watch.end) impl_->watch.end(pass, stage);
  }
}

const std::vector<std::vector<size_t>>& Policy::stages() const { return impl_->stages; }

const std::vector<NamedParameter>& Policy::parameters() const { return impl_->parameters; }

const ModelConfig& Policy::config() const { return impl_->config; }

}  // namespace tandem::trainer
