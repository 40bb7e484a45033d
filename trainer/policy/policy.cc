#include "trainer/policy/policy.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <functional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/status_macros.h"
#include "common/tensor/host_tensor_conversion.h"
#include "common/tensor/torch_status.h"
#include "trainer/policy/chunked_logprobs.h"
#include "trainer/policy/cpu/cpu_layer_ops.h"
#include "trainer/policy/cpu/exact_ops.h"
#include "trainer/policy/cuda/device_layer_ops.h"
#include "trainer/policy/decoder.h"
#include "trainer/policy/row_targets.h"
#include "trainer/policy/tensor_memory.h"
#include "trainer/policy/weights/policy_weights.h"

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

// What adapters cannot be trained with.
absl::Status CheckLora(const PolicyForm& form, Numerics numerics, Device device) {
  if (!form.lora.enabled()) return absl::OkStatus();
  const bool exact = numerics == Numerics::kExact;
  if (exact && form.lora.dropout > 0) {
    return InvalidArgument("trainer.lora.dropout is ", form.lora.dropout,
                           " with numerics exact, whose forward is the servers', and those leave "
                           "nothing out: set it to 0");
  }
  if (exact && device == Device::kCuda) {
    return Unimplemented(
        "trainer.lora with numerics exact and trainer.device cuda: use device cpu");
  }
  if (!exact && form.quantised.quantises()) {
    return InvalidArgument(
        "trainer.lora with fake_quantise and numerics fast: servers quantise the merged weights, "
        "which this forward does not have. Leave fake_quantise out, or set numerics exact");
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
  std::unique_ptr<LayerOps> ops;
  std::unique_ptr<PolicyWeights> weights;
  bool checkpoint_activations = false;

  const ModelConfig& config() const { return weights->decoder().config; }
  FinalRows TakeFinal(const at::Tensor& hidden, std::span<const int64_t> rows) const;
  std::unique_ptr<ScoreTape> Forward(const PackedRow& row, Targets targets,
                                     const PassOptions& options);
  at::Tensor LogprobsBackward(ScoreTape& tape, const at::Tensor& logprobs_grad,
                              const at::Tensor& entropies_grad) const;
  void Backward(ScoreTape& tape, torch::autograd::variable_list& grads);
  void AttachBackward(std::unique_ptr<ScoreTape> tape, TokenScores& scores);
};

FinalRows Policy::Impl::TakeFinal(const at::Tensor& hidden, std::span<const int64_t> rows) const {
  FinalRows final{.hidden = ops->TakeRows(hidden, rows)};
  final.normed = ops->RmsNorm(weights->decoder().final_norm, final.hidden, config().rms_norm_eps);
  return final;
}

std::unique_ptr<ScoreTape> Policy::Impl::Forward(const PackedRow& row, Targets targets,
                                                 const PassOptions& options) {
  auto tape = std::make_unique<ScoreTape>();
  tape->targets = std::move(targets);
  tape->options = options;
  if (options.with_gradient) tape->row = row;
  tape->decoder.inputs_only = checkpoint_activations;
  weights->SetPass(options.lora);
  const DecoderWeights& decoder = weights->decoder();
  const at::Tensor hidden =
      DecoderForward(*ops, decoder, row, options.with_gradient ? &tape->decoder : nullptr,
                     weights->Layers(Pass::kForward));
  weights->BeginStage(Pass::kForward, 0);
  if (!tape->targets.positions.empty()) {
    tape->predicting = TakeFinal(hidden, tape->targets.sources);
    tape->chosen = ChosenTokenLogprobs(
        *ops, tape->predicting.normed.value, decoder.head, tape->targets.tokens,
        options.temperature, options.with_gradient ? kMaxKeptLogits : 0, tape->targets.support);
  }
  if (!options.hidden_at.empty()) tape->asked = TakeFinal(hidden, options.hidden_at);
  weights->EndStage(Pass::kForward, 0);
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
      *ops, tape.predicting.normed.value, weights->decoder().head, tape.targets.tokens,
      tape.options.temperature, tape.chosen,
      logprobs_grad.defined() ? of_targets(logprobs_grad) : at::zeros_like(tape.chosen.logprobs),
      tape.targets.support, entropies_grad.defined() ? of_targets(entropies_grad) : at::Tensor());
}

void Policy::Impl::Backward(ScoreTape& tape, torch::autograd::variable_list& grads) {
  weights->PrepareGrads();
  weights->SetPass(tape.options.lora);
  const int64_t num_tokens = tape.row.num_tokens();
  at::Tensor hidden_grad;
  const auto add = [&](const FinalRows& rows, std::span<const int64_t> places,
                       const at::Tensor& normed_grad) {
    at::Tensor of_rows;
    ops->RmsNormBackward(weights->decoder().final_norm, rows.hidden, rows.normed.rstd, normed_grad,
                         of_rows);
    const at::Tensor spread = ops->SpreadRows(of_rows, places, num_tokens);
    hidden_grad = hidden_grad.defined() ? hidden_grad.add_(spread) : spread;
  };
  weights->BeginStage(Pass::kBackward, 0);
  if (grads[0].defined() || grads[1].defined()) {
    add(tape.predicting, tape.targets.sources, LogprobsBackward(tape, grads[0], grads[1]));
  }
  if (grads[2].defined()) add(tape.asked, tape.options.hidden_at, grads[2].contiguous());
  weights->EndStage(Pass::kBackward, 0);
  DecoderBackward(*ops, weights->decoder(), tape.row, tape.decoder, hidden_grad,
                  weights->Layers(Pass::kBackward));
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
  TANDEM_RETURN_IF_ERROR(CheckLora(form, numerics, device));
  return CatchTorch("policy", [&]() -> absl::StatusOr<std::unique_ptr<Policy>> {
    auto impl = std::make_unique<Impl>();
    TANDEM_ASSIGN_OR_RETURN(impl->ops, MakeOps(config, dtype, numerics, device, plan.kv));
    TANDEM_ASSIGN_OR_RETURN(
        impl->weights,
        PolicyWeights::Create(config, {dtype, trainable, numerics, device, plan, form.lora},
                              *impl->ops));
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
  const auto fill = [](const NamedParameter& parameter, const at::Tensor& values) {
    TANDEM_CHECK(values.sizes() == parameter.master.sizes());
    const at::NoGradGuard no_grad;
    SetStored(parameter.master, true);
    parameter.master.copy_(values);
  };
  const PolicyWeights& weights = *policy->impl_->weights;
  const std::vector<NamedParameter>& parameters = weights.model();
  for (size_t i = 0; i < parameters.size(); ++i) {
    if (i >= tensors.size() || tensors[i].spec.name != parameters[i].name) {
      return InvalidArgument("tensor ", i, " of the model must be ", parameters[i].name);
    }
    TANDEM_ASSIGN_OR_RETURN(const at::Tensor values, AsMaster(tensors[i]));
    fill(parameters[i], values);
  }
  if (!weights.adapters().enabled()) return policy;
  const std::vector<at::Tensor> initial = InitialAdapters(weights.adapters(), /*seed=*/0);
  for (size_t i = 0; i < initial.size(); ++i) fill(weights.parameters()[i], initial[i]);
  return policy;
}

absl::StatusOr<TokenScores> Policy::Run(const PackedRow& row, const PassOptions& options) {
  TANDEM_CHECK(options.temperature > 0);
  TANDEM_CHECK(!options.with_gradient || impl_->weights->trainable());
  TANDEM_ASSIGN_OR_RETURN(Targets targets, FindTargets(row, impl_->config().vocab_size));
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

void Policy::WeightsChanged(Rounding rounding) { impl_->weights->WeightsChanged(rounding); }

void Policy::BaseChanged() { impl_->weights->BaseChanged(); }

const std::vector<NamedParameter>& Policy::base() const { return impl_->weights->base(); }

const PolicyAdapters& Policy::adapters() const { return impl_->weights->adapters(); }

void Policy::CheckpointActivations(bool checkpoint) { impl_->checkpoint_activations = checkpoint; }

void Policy::Watch(PassWatch watch) { impl_->weights->Watch(std::move(watch)); }

void Policy::RunEmptyPass(Pass pass) {
  const PassWatch& watch = impl_->weights->watch();
  const size_t count = stages().size();
  for (size_t i = 0; i < count; ++i) {
    const size_t stage = pass == Pass::kForward ? count - 1 - i : i;
    if (watch.begin) watch.begin(pass, stage);
    if (watch.end) watch.end(pass, stage);
  }
}

const std::vector<std::vector<size_t>>& Policy::stages() const { return impl_->weights->stages(); }

const std::vector<NamedParameter>& Policy::parameters() const {
  return impl_->weights->parameters();
}

const ModelConfig& Policy::config() const { return impl_->config(); }

}  // namespace tandem::trainer
