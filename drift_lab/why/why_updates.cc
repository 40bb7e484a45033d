// Experiments about target / proximal: what the run recorded, and the trainer against itself.
#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "drift_lab/why/why.h"

namespace tandem::drift {
namespace {

// True if the ratio is 1 within what fp32 log-probs resolve; for so small an x, e^x - 1 is x.
bool IsOne(const StepRatio& step) {
  return std::abs(step.mean - 1) <= kSameLogprob && step.max - 1 <= kSameLogprob;
}

std::string Recorded(const StepRatio& step) {
  return absl::StrFormat("step %d: %d update%s, ratio mean %.7g, max %.7g, clipped %.2g %%",
                         step.step, step.num_updates, step.num_updates == 1 ? "" : "s", step.mean,
                         step.max, 100 * step.clipped_share);
}

// In how many other steps of the run the ratio is not 1.
std::string OtherSteps(const RunRatios& run) {
  const auto away = std::ranges::count_if(run.steps, [](const StepRatio& s) { return !IsOne(s); });
  return absl::StrFormat("; not 1 in %d of %d steps of the run", away,
                         static_cast<int64_t>(run.steps.size()));
}

Experiment FirstUpdate(const Attribution& a, const TrainerExperiments& trainer,
                       const StepRatio* step, bool bypass) {
  Experiment e{.name = "first update",
               .ratio = Ratio::kTargetOverProximal,
               .compared =
                   "the pass of an update against a proximal pass, same weights and rows (1 by "
                   "construction)"};
  if (!a.findings.empty()) {
    e.finding = Finding::kCannotTell;
    e.result = "not scored: the capture is not comparable";
    e.to_do = "mend what the consistency checks found";
    return e;
  }
  const double away =
      std::expm1(std::max(trainer.twice.update_max_abs, trainer.twice.again_max_abs));
  e.result =
      absl::StrFormat("scored here: 1 to %.2g over %d tokens", away, trainer.twice.num_tokens);
  const bool single = step != nullptr && step->num_updates == 1 && !bypass;
  if (away > kSameLogprob) {
    e.finding = Finding::kIsIt;
    e.cause =
        "the first update already computes other log-probs than the proximal pass: something is "
        "random, or differs in train mode";
    e.to_do = "switch off what is random or differs in train mode (dropout): trainer.deterministic";
  } else if (single && !IsOne(*step)) {
    e.finding = Finding::kCannotTell;
    e.result += ", and the run recorded something else";
    e.to_do =
        "the run's two passes were not of the same weights, tokens or temperature, and here they "
        "are: run one step on this machine with trainer.deterministic and trainer.capture.every=1";
  }
  return e;
}

Experiment LaterUpdates(const StepRatio* step, const RunRatios& run) {
  Experiment e{.name = "later updates",
               .ratio = Ratio::kTargetOverProximal,
               .compared =
                   "the updates of a step after its first one: weights have moved, the proximal "
                   "policy has not"};
  if (step == nullptr) {
    e.finding = Finding::kCannotTell;
    e.result = run.run.empty() ? "no run around this capture: no step metrics"
                               : "the run has no metrics of this step";
    e.to_do = "name the run directory whose metrics.jsonl has the step";
    return e;
  }
  e.result = Recorded(*step) + OtherSteps(run);
  if (step->num_updates <= 1) {
    e.result += "; there are no later updates";
  } else if (!std::isfinite(step->mean) || !std::isfinite(step->max)) {
    e.finding = Finding::kCannotTell;
    e.to_do =
        "the recorded ratio is not finite: look at optimizer/skipped_updates and "
        "drift/num_nonfinite";
  } else if (!IsOne(*step) && run.bypass) {
    e.finding = Finding::kCannotTell;
    e.to_do =
        "in bypass mode the recorded ratio holds pi/mu and the updates together: run with "
        "num_minibatches=1 and num_epochs=1, or with correction.mode=decoupled, and compare";
  } else if (!IsOne(*step)) {
    e.finding = Finding::kIsIt;
    e.cause = absl::StrFormat("later minibatches: %d updates a step, and weights move between them",
                              step->num_updates);
    e.to_do =
        "this is what the clip is for: watch loss/clip_*_share; to have it 1 set num_minibatches=1 "
        "and num_epochs=1. Not recorded: one ratio per minibatch, only mean and max over all "
        "updates of a step";
  } else {
    e.result +=
        absl::StrFormat("; weights did not move between them (gradient norm %.3g, %d skipped)",
                        step->grad_norm, step->skipped_updates);
  }
  return e;
}

Experiment Centre(const StepRatio* step) {
  Experiment e{.name = "centre",
               .ratio = Ratio::kTargetOverProximal,
               .compared = "correction.mode of the run: what the loss's ratio is centred on",
               .result = "bypass: the recorded ratio is target / behaviour"};
  if (step == nullptr || IsOne(*step)) return e;
  e.finding = Finding::kIsIt;
  e.cause = "bypass mode: the loss's ratio is target / behaviour and holds all of pi/mu";
  e.to_do =
      "read the causes of pi/mu; with correction.mode=decoupled the loss's ratio is target / "
      "proximal";
  return e;
}

}  // namespace

std::vector<Experiment> TargetOverProximalExperiments(const Attribution& attribution,
                                                      const TrainerExperiments& trainer,
                                                      const RunRatios& run) {
  const StepRatio* const step = run.Find(attribution.capture.manifest.step);
  std::vector<Experiment> all = {FirstUpdate(attribution, trainer, step, run.bypass),
                                 LaterUpdates(step, run)};
  if (run.bypass) all.push_back(Centre(step));
  return all;
}

RatioAnswer AnswerTargetOverProximal(const std::vector<Experiment>& experiments,
                                     const StepRatio* step, bool bypass) {
  const std::string name(RatioName(Ratio::kTargetOverProximal));
  if (step == nullptr || !std::isfinite(step->mean)) {
    return {RatioState::kUnknown,
            absl::StrCat(name, " is not known: no step metrics beside this capture.")};
  }
  if (IsOne(*step)) {
    return {
        RatioState::kOne,
        absl::StrFormat("%s is 1: %s.", name,
                        step->num_updates == 1
                            ? "one update a step, so nothing moves between proximal pass and update"
                            : "weights did not move between the updates of the step")};
  }
  const auto named = [&](const char* which) {
    return std::ranges::find(experiments, which, &Experiment::name);
  };
  if (bypass)
    return {RatioState::kNotOne,
            absl::StrCat(name, " is not what the loss has: ", named("centre")->cause, ".")};
  const std::string size =
      absl::StrFormat("%s is not 1 (mean %.6g, max %.4g)", name, step->mean, step->max);
  for (const char* const which : {"first update", "later updates"}) {
    const auto found = named(which);
    if (found->finding == Finding::kIsIt)
      return {RatioState::kNotOne, absl::StrCat(size, ": ", found->cause, ".")};
  }
  return {RatioState::kNotOne,
          absl::StrCat(size, ", and no experiment says why: ", named("first update")->to_do, ".")};
}

}  // namespace tandem::drift
