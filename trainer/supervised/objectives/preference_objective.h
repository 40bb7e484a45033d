// PreferenceObjective: the losses of pairs of preference_loss.h over what passes give: sums of
// log-probs of both completions, and slopes by token. Used by `tandem train-preferences`.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "trainer/preferences/preference_data.h"
#include "trainer/preferences/preference_loss.h"
#include "trainer/supervised/supervised_objective.h"

namespace tandem::trainer {

class PreferenceObjective : public SupervisedObjective {
 public:
  // `reference_logprobs`: of the tokens of all chosen and rejected completions under the reference
  // policy, pair by pair; empty for a loss without one. `options` have passed CheckOptions; the
  // kind is not kto.
  PreferenceObjective(std::vector<PreferencePair> pairs, std::span<const float> reference_logprobs,
                      const PreferenceLossOptions& options);

  int64_t num_examples() const override { return static_cast<int64_t>(pairs_.size()); }
  GroupTokens Example(int64_t example) const override;
  // The NLL term of orpo is over the prompt too, as in TRL.
  bool reads_prompt() const override { return options_.kind == PreferenceLossKind::kOrpo; }
  void BeginBatch(std::span<const int64_t> examples, double sum_before) override;
  double Loss(int64_t example, const ExampleScores& scores, ExampleSlopes* slopes,
              std::span<MetricSum> metrics) const override;
  std::vector<std::string> MetricNames() const override;

 private:
  int64_t NllTokens(const PreferencePair& pair) const;

  const std::vector<PreferencePair> pairs_;
  const PreferenceLossOptions options_;
  std::vector<double> reference_chosen_, reference_rejected_;  // DesensitisedSum of each pair
  double num_pairs_ = 0;                                       // of the batch
  double mean_nll_tokens_ = 0;                                 // of the batch
};

// The tokens that `reference_logprobs` are of.
GroupTokens TokensOf(const PreferencePair& pair);

}  // namespace tandem::trainer
