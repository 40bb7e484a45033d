// Why: the answer to "why is my ratio not 1?", for both ratios that people mean by it. From what
// was measured it derives a finding for each experiment and a sentence for each ratio. Pure.
//
//   pi / mu            proximal over behaviour: trainer against server, on the tokens of a capture
//   target / proximal  the ratio in the loss, between the optimizer updates of a step
//
// An experiment compares two numbers that differ in one thing. Its finding is "is it" if the
// verdict names that thing (verdict.h); "is not" if the thing changes nothing, or less than
// kLeastShare of the mean square; and "cannot tell" if the two differ in an unknown way, or if the
// interval is unknown or too wide.
#pragma once

#include <limits>
#include <string>
#include <string_view>
#include <vector>

#include "drift_lab/ablation/attribution.h"
#include "drift_lab/why/run_ratios.h"
#include "drift_lab/why/trainer_experiments.h"

namespace tandem::drift {

enum class Ratio { kTrainerOverServer, kTargetOverProximal };
std::string_view RatioName(Ratio ratio);  // "pi/mu", "target/proximal"

enum class Finding { kIsNot, kIsIt, kCannotTell };
std::string_view FindingName(Finding finding);  // "is not", "is it", "cannot tell"

struct Experiment {
  std::string name;  // "weights"
  Ratio ratio = Ratio::kTrainerOverServer;
  std::string compared;  // what is compared with what
  std::string result;    // the numbers
  Finding finding = Finding::kIsNot;
  std::string cause;  // for kIsIt: the cause, as the answer names it
  std::string to_do;  // for kIsIt: what to do; for kCannotTell: what would decide
  // The share of the mean square of log(pi/mu); NaN if the ratio cannot show it or it has no share.
  double share = std::numeric_limits<double>::quiet_NaN();
};

enum class RatioState { kOne, kNotOne, kUnknown };
struct RatioAnswer {
  RatioState state = RatioState::kUnknown;
  std::string sentence;
};

struct Why {
  RatioAnswer trainer_over_server, target_over_proximal;
  std::vector<Experiment> experiments;  // cheap and discrete ones first

  std::string answer() const {
    return trainer_over_server.sentence + " " + target_over_proximal.sentence;
  }
};

// If the consistency checks have findings, they are the answer, and `trainer` is not read.
Why ExplainRatios(const Attribution& attribution, const TrainerExperiments& trainer,
                  const RunRatios& run);

// The two halves of ExplainRatios, in why_server.cc and why_updates.cc. `experiments` are those of
// the ratio.
std::vector<Experiment> TrainerOverServerExperiments(const Attribution& attribution,
                                                     const TrainerExperiments& trainer);
std::vector<Experiment> TargetOverProximalExperiments(const Attribution& attribution,
                                                      const TrainerExperiments& trainer,
                                                      const RunRatios& run);
RatioAnswer AnswerTargetOverProximal(const std::vector<Experiment>& experiments,
                                     const StepRatio* step, bool bypass);

}  // namespace tandem::drift
