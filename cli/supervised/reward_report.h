// The report of a reward model: how right and how sure it is on held-out data. It is written as
// reward_model.json, for programs, and as reward_model.html, a page that opens without a network.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "trainer/preferences/preference_data.h"
#include "trainer/preferences/step_data.h"

namespace tandem::cli {

struct RewardReport {
  std::string name;  // of the output directory
  std::string kind;  // "outcome" or "process"
  int64_t num_heads = 1;
  int64_t num_trained = 0, num_updates = 0;  // rows
  double held_out_loss = 0;
};

// Measures scores of held-out pairs, [pairs, 2, heads] (SupervisedModel::HeadScores), reads
// OUT/metrics.jsonl for the curves, and writes both files to OUT. Returns the text to print.
// Errors: those of reading and writing files.
absl::StatusOr<std::string> WriteRewardReport(const std::string& out, const RewardReport& report,
                                              const std::vector<trainer::PreferencePair>& pairs,
                                              std::span<const float> scores);
// The same for steps, [steps]: a step is judged right where its score is over 0. A soft label
// counts as right over one half.
absl::StatusOr<std::string> WriteStepReport(const std::string& out, const RewardReport& report,
                                            const std::vector<trainer::LabelledSteps>& rows,
                                            std::span<const float> scores);

}  // namespace tandem::cli
