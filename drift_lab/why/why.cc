#include "drift_lab/why/why.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"

namespace tandem::drift {
namespace {

constexpr auto kFirst = Ratio::kTrainerOverServer;

std::string Because(std::vector<const Experiment*> causes) {
  std::ranges::stable_sort(causes, std::ranges::greater(), [](const Experiment* e) {
    return std::isfinite(e->share) ? e->share : 0.0;
  });
  std::vector<std::string> words;
  for (const Experiment* const e : causes) {
    words.push_back(std::isfinite(e->share) ? absl::StrFormat("%s (%.0f %% of the mean square)",
                                                              e->cause, 100 * e->share)
                                            : e->cause);
  }
  if (words.size() < 2) return absl::StrJoin(words, "");
  const std::string last = words.back();
  words.pop_back();
  return absl::StrCat(absl::StrJoin(words, ", "), " and ", last);
}

// The experiment "draws" is about sampling, which the ratio does not show.
bool InRatio(const Experiment& e) { return e.name != "draws"; }

RatioAnswer AnswerTrainerOverServer(const Attribution& a,
                                    const std::vector<Experiment>& experiments) {
  const std::string name(RatioName(kFirst));
  std::vector<const Experiment*> causes, unknown;
  std::string sampling;
  for (const Experiment& e : experiments) {
    if (e.ratio != kFirst) continue;
    if (!InRatio(e)) {
      if (e.finding == Finding::kIsIt)
        sampling = absl::StrCat(" No ratio shows this: ", e.cause, ".");
      if (e.finding == Finding::kCannotTell)
        sampling = " No ratio shows this: tokens were not drawn from what was recorded.";
    } else if (e.finding == Finding::kIsIt) {
      causes.push_back(&e);
    } else if (e.finding == Finding::kCannotTell && std::isfinite(e.share)) {
      unknown.push_back(&e);
    }
  }
  const double gap = a.shares.total_mean_abs.value;
  if (a.verdict.nothing_to_explain && causes.empty()) {
    return {
        RatioState::kOne,
        absl::StrCat(
            name,
            gap == 0 ? " is exactly 1 for every token: trainer and server agree bit for bit."
                     : absl::StrFormat(" is 1: mean abs log ratio %.2g nats is what fp32 log-probs "
                                       "cannot say.",
                                       gap),
            sampling)};
  }
  const std::string size =
      absl::StrFormat("%s is not 1 (mean abs log ratio %.3g nats, largest %.3g)", name, gap,
                      a.by_sequence.Get("max_abs_delta"));
  if (!causes.empty()) {
    return {RatioState::kNotOne,
            absl::StrCat(size, " because of ", Because(std::move(causes)), ".", sampling)};
  }
  if (!unknown.empty()) {
    return {RatioState::kNotOne,
            absl::StrCat(size, ", and no cause can be named yet; the most is in ",
                         unknown.front()->name, ": ", unknown.front()->to_do, ".", sampling)};
  }
  return {RatioState::kNotOne,
          absl::StrCat(size, ", and no single experiment has as much as 2 % of its mean square.",
                       sampling)};
}

// The findings of the consistency checks as experiments.
std::vector<Experiment> FindingExperiments(const Attribution& a) {
  std::vector<Experiment> experiments;
  for (const ConsistencyFinding& finding : a.findings) {
    experiments.push_back({.name = std::string(DiscreteFaultName(finding.fault)),
                           .compared = "what both sides claim to have scored",
                           .result = finding.message,
                           .finding = Finding::kIsIt,
                           .cause = std::string(DiscreteFaultName(finding.fault)),
                           .to_do = "mend this first: the two sides did not score the same thing"});
  }
  return experiments;
}

}  // namespace

std::string_view RatioName(Ratio ratio) { return ratio == kFirst ? "pi/mu" : "target/proximal"; }

std::string_view FindingName(Finding finding) {
  constexpr std::string_view kNames[] = {"is not", "is it", "cannot tell"};
  return kNames[static_cast<size_t>(finding)];
}

Why ExplainRatios(const Attribution& attribution, const TrainerExperiments& trainer,
                  const RunRatios& run) {
  Why why;
  if (attribution.findings.empty()) {
    why.experiments = TrainerOverServerExperiments(attribution, trainer);
    why.trainer_over_server = AnswerTrainerOverServer(attribution, why.experiments);
  } else {
    why.experiments = FindingExperiments(attribution);
    why.trainer_over_server.sentence =
        absl::StrCat("pi/mu has no meaning here: the capture is not comparable (",
                     why.experiments.front().name, "), which is a discrete fault and not drift.");
  }
  std::vector<Experiment> between = TargetOverProximalExperiments(attribution, trainer, run);
  why.target_over_proximal =
      AnswerTargetOverProximal(between, run.Find(attribution.capture.manifest.step), run.bypass);
  std::ranges::move(between, std::back_inserter(why.experiments));
  return why;
}

}  // namespace tandem::drift
