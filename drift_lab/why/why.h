// Why: the answer to "why is my ratio not 1?", for both ratios that people mean by it. Pure: what
// was measured goes in, a judgement per experiment and a sentence per ratio come out.
//
//   pi / mu           proximal over behaviour: trainer against server, on the tokens of a capture
//   target / proximal r of the loss: between the optimizer updates of a step
//
// An experiment compares two numbers that differ in one thing. It *is it* when the verdict names
// that thing (verdict.h), *is not* when the thing changes nothing or less than kLeastShare of the
// mean square, and *cannot tell* where the two differ in an unknown way, or an interval is too wide
// or not known.
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
  std::string compared;  // the two things
  std::string result;    // the numbers
  Finding finding = Finding::kIsNot;
  std::string cause;  // of kIsIt: for the answer
  std::string to_do;  // of kIsIt: what to do; of kCannotTell: what would decide
  // Of the mean square of log(pi/mu); NaN where the ratio cannot show it or it has no share.
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

// A capture that did not pass the gate has its findings for an answer; `trainer` is not read then.
Why ExplainRatios(const Attribution& attribution, const TrainerExperiments& trainer,
                  const RunRatios& run);

// The two halves of it, in why_server.cc and why_updates.cc. Of the experiments, those of the
// ratio.
std::vector<Experiment> TrainerOverServerExperiments(const Attribution& attribution,
                                                     const TrainerExperiments& trainer);
std::vector<Experiment> TargetOverProximalExperiments(const Attribution& attribution,
                                                      const TrainerExperiments& trainer,
                                                      const RunRatios& run);
RatioAnswer AnswerTargetOverProximal(const std::vector<Experiment>& experiments,
                                     const StepRatio* step, bool bypass);

}  // namespace tandem::drift
