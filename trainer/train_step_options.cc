#include "trainer/train_step_options.h"

#include <algorithm>

#include "common/base/status_macros.h"
#include "common/drift/peer_metrics.h"

namespace tandem::trainer {

void BindOptions(OptionBinder& binder, TrainStepOptions& options) {
  binder.Integer("microbatch_tokens", &options.microbatch_tokens, {.min = 1}, "tokens",
                 "scored and differentiated at once: memory, not the result, depends on it");
  binder.Integer(
      "num_minibatches", &options.num_minibatches, {.min = 1}, "",
      "optimizer updates per pass over a step's groups; over 1 costs a proximal pass over all "
      "but the first");
  binder.Integer("num_epochs", &options.num_epochs, {.min = 1}, "", "passes over a step's groups");
  binder.Number("target_kl", &options.target_kl, {.min = 0}, "nats",
                "no further update in a step once the mean KL(proximal || target) of a token is "
                "over this; 0: all updates");
  binder.Section("correction", "what an off-policy token counts (stage 6)", options.correction);
  binder.Section("loss", "the policy loss (stage 7)", options.loss);
  binder.Section("optimizer", "AdamW (stage 8)", options.optimizer);
  binder.Section(
      "reference",
      "the policy that a KL is measured against, or that a preference loss compares with",
      options.reference);
  binder.Section("critic", "value model, where advantage.kind needs one", options.critic);
  binder.Section("metrics", "what metrics.jsonl holds beside its own names", [&](OptionBinder& b) {
    b.TextList("peer_names", &options.peer_names,
               "also report drift under the names, and by the formulas, of these systems: verl, "
               "nemo_rl, trl, prime_rl (docs/metrics.md)");
  });
}

namespace {

absl::Status CheckPeers(const std::vector<std::string>& names) {
  for (auto name = names.begin(); name != names.end(); ++name) {
    const absl::Status known = offpolicy::ParsePeer(*name).status();
    if (!known.ok()) {
      return InvalidArgument("metrics.peer_names: ", known.message());
    }
    if (std::find(names.begin(), name, *name) != name) {
      return InvalidArgument("metrics.peer_names: \"", *name, "\" is there twice");
    }
  }
  return absl::OkStatus();
}

absl::Status CheckKl(const TrainStepOptions& options) {
  const PolicyLossOptions& loss = options.loss;
  const bool one_update = options.num_minibatches * options.num_epochs == 1;
  if (loss.objective.kind == offpolicy::ObjectiveKind::kPenalty && one_update) {
    return InvalidArgument(
        "loss.kind penalty with one update per step: target and proximal policy are the same then, "
        "and their KL says nothing. Set num_epochs or num_minibatches over 1");
  }
  if (!IsInReward(loss.kl_place)) {
    if (loss.kl_control == KlControl::kFixed) return absl::OkStatus();
    return InvalidArgument(
        "loss.kl_control adaptive follows the KL in the reward: set loss.kl_place reward or "
        "token_reward, or loss.kl_control fixed");
  }
  if (loss.kl_ratio_weighted) {
    return InvalidArgument(
        "loss.kl_ratio_weighted weighs a gradient; with loss.kl_place reward there is none");
  }
  if (loss.kl_estimator == KlEstimator::kK2 || loss.kl_estimator == KlEstimator::kK3) {
    return InvalidArgument(
        "loss.kl_estimator ", loss.kl_estimator == KlEstimator::kK2 ? "k2" : "k3",
        " with loss.kl_place reward does not hold the policy to its reference: what it takes off "
        "the reward has an expected gradient that vanishes to first order where the two are close. "
        "Leave loss.kl_estimator at auto, which is k1 there, or set loss.kl_place loss");
  }
  return absl::OkStatus();
}

absl::Status CheckPairLoss(const PreferenceLossOptions& preference) {
  if (NeedsLabels(preference.kind)) {
    return InvalidArgument(
        "loss.preference.kind kto reads single completions with a label, and a group gives a pair: "
        "choose another loss, or train on labels with `tandem train-preferences`");
  }
  if (preference.kind == PreferenceLossKind::kOrpo) {
    return InvalidArgument(
        "loss.preference.kind orpo has an NLL term over the prompt, which a train step does not "
        "score: choose cpo, or dpo with rpo_alpha");
  }
  const absl::Status checked = CheckOptions(preference, /*has_margins=*/false);
  if (checked.ok()) return checked;
  return InvalidArgument("loss.preference: ", checked.message());
}

// The loss of a pair reads the log-probs of two whole completions.
absl::Status CheckPairs(const TrainStepOptions& options) {
  if (!ReadsPairs(options.loss)) return absl::OkStatus();
  const offpolicy::CorrectionOptions& correction = options.correction;
  if (correction.mode == offpolicy::CorrectionMode::kBypass) {
    return InvalidArgument(
        "correction.mode bypass centres a ratio on the behaviour policy, and loss.kind preference "
        "has no ratio: set it to decoupled, or to measure_only for pairs without weights");
  }
  if (HasWeights(correction) && offpolicy::LevelOf(correction.kind) == offpolicy::Level::kToken) {
    return InvalidArgument(
        "correction.kind weighs single tokens, and loss.kind preference has one weight for a pair: "
        "set it to sequence_tis (the product of the ratios of both completions), to another "
        "sequence or geometric kind, or to off");
  }
  if (correction.negative_only) {
    return InvalidArgument(
        "correction.negative_only spares the chosen completion of a pair and not the rejected one, "
        "and loss.kind preference needs both: set it false");
  }
  if (options.loss.kl_coefficient > 0 || options.loss.entropy_coefficient > 0) {
    return InvalidArgument(
        "loss.kind preference has no term beside the loss of the pair: set loss.kl_coefficient and "
        "loss.entropy_coefficient to 0; loss.preference.beta holds the policy to its reference");
  }
  return CheckPairLoss(options.loss.preference);
}

absl::Status CheckOptimizer(const std::string& section, const OptimizerOptions& optimizer) {
  if (optimizer.decay != LearningRateDecay::kConstant && optimizer.decay_updates == 0) {
    return InvalidArgument(section, ".decay needs ", section,
                           ".decay_updates, the updates until the floor");
  }
  if (optimizer.beta1 >= 1 || optimizer.beta2 >= 1) {
    return InvalidArgument(section, ".beta1 ", optimizer.beta1, " and beta2 ", optimizer.beta2,
                           " must be below 1");
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckOptions(const TrainStepOptions& options) {
  TANDEM_RETURN_IF_ERROR(CheckPeers(options.peer_names));
  TANDEM_RETURN_IF_ERROR(offpolicy::CheckOptions(options.correction, options.loss.objective));
  TANDEM_RETURN_IF_ERROR(CheckOptions(options.critic));
  TANDEM_RETURN_IF_ERROR(CheckKl(options));
  TANDEM_RETURN_IF_ERROR(CheckPairs(options));
  TANDEM_RETURN_IF_ERROR(CheckOptimizer("optimizer", options.optimizer));
  return CheckOptimizer("critic.optimizer", options.critic.optimizer);
}

absl::Status CheckLora(const LearnerOptions& options) {
  const LoraOptions& lora = options.lora;
  if (!lora.enabled()) {
    if (lora.start.empty()) return absl::OkStatus();
    return InvalidArgument("trainer.lora.start names ", lora.start,
                           ", and trainer.lora.rank is 0: set the rank of its adapters");
  }
  const bool exact = options.numerics == Numerics::kExact;
  if (exact && lora.dropout > 0) {
    return InvalidArgument("trainer.lora.dropout is ", lora.dropout,
                           " with trainer.numerics exact, whose forward is the servers', and those "
                           "leave nothing out: set it to 0");
  }
  if (!exact && options.fake_quantise != QuantisationOptions()) {
    return InvalidArgument(
        "trainer.lora with trainer.fake_quantise and numerics fast: servers quantise the merged "
        "weights, which this forward does not have. Leave fake_quantise out, or set numerics "
        "exact");
  }
  if (options.step.reference.kind == ReferenceKind::kEma) {
    return InvalidArgument(
        "trainer.reference.kind ema with trainer.lora: a mean of factors is not the mean of the "
        "weights that they stand for; use frozen or reset");
  }
  return absl::OkStatus();
}

void BindOptions(OptionBinder& binder, LearnerOptions& options) {
  binder.Choice("dtype", &options.dtype,
                {{"fp32", ComputeDType::kFp32}, {"bf16", ComputeDType::kBf16}},
                "of linear layers and attention; masters, norms and log-softmax are always fp32");
  binder.Choice(
      "device", &options.device, {{"cpu", Device::kCpu}, {"cuda", Device::kCuda}},
      "where the policy computes and its parameters lie; cuda needs a build of the cuda preset "
      "and a GPU for each rank of a machine");
  BindNumerics(
      binder, &options.numerics,
      "exact: the forward gives the rollout servers' bits at equal weights, when they have the "
      "same dtype; fast and invariant: the trainer's own best kernels");
  binder.Section("fake_quantise",
                 "the forward sees weights as rollout servers with these options store them, and "
                 "gradients go straight through; numerics exact needs those of server.engine",
                 options.fake_quantise);
  binder.Section("lora",
                 "trains adapters of low rank beside frozen weights (docs/lora.md); names and "
                 "meanings are those of PEFT",
                 options.lora);
  binder.Integer("threads", &options.num_threads, {.min = 0, .max = 1024}, "threads",
                 "of the trainer's kernels; 0: one per core");
  binder.Flag(
      "checkpoint_activations", &options.checkpoint_activations,
      "keep only each layer's input for the backward pass and compute the rest again: about a "
      "tenth of the memory of a row's activations, a quarter more time");
  binder.Flag(
      "measure_reference_kl", &options.measure_reference_kl,
      "keep the starting weights and report the KL to them even when the loss has no KL term");
  BindOptions(binder, options.step);
}

}  // namespace tandem::trainer
