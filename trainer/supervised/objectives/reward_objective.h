// RewardObjective: reward models on pairs (reward_model_loss.h). K heads on one trunk score the
// last token of each completion, which is the end token unless the completion was truncated. Used
// by `tandem train-reward-model`.
//
// With several heads each has training data of its own: a bootstrap sample of the pairs, drawn with
// replacement, so a pair counts as often as it was drawn (Osband et al. 2016, "Deep exploration via
// bootstrapped DQN", arXiv 1602.04621). The loss of a batch is the mean over the heads of each
// head's weighted mean over the pairs.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "trainer/preferences/preference_data.h"
#include "trainer/preferences/reward_model_loss.h"
#include "trainer/supervised/supervised_objective.h"

namespace tandem::trainer {

// How often each head draws each of `count` pairs, [heads, count] row-major; every head draws
// `count` times. A function of the arguments alone.
std::vector<double> BootstrapCounts(int64_t num_heads, int64_t count, uint64_t seed);

class RewardObjective : public SupervisedObjective {
 public:
  // `counts`: BootstrapCounts; empty: every pair counts once for each head.
  RewardObjective(std::vector<PreferencePair> pairs, int64_t num_heads, std::vector<double> counts,
                  const RewardModelLossOptions& options);

  int64_t num_examples() const override { return static_cast<int64_t>(pairs_.size()); }
  GroupTokens Example(int64_t example) const override;
  int64_t num_heads() const override { return num_heads_; }
  std::vector<ScorePlace> ScorePlaces(int64_t example) const override;
  void BeginBatch(std::span<const int64_t> examples, double sum_before) override;
  double Loss(int64_t example, const ExampleScores& scores, ExampleSlopes* slopes,
              std::span<MetricSum> metrics) const override;
  // Of the mean over the heads; the disagreement is the mean standard deviation over them.
  std::vector<std::string> MetricNames() const override;

 private:
  double Count(int64_t head, int64_t example) const {
    return counts_.empty() ? 1 : counts_[static_cast<size_t>(head * num_examples() + example)];
  }

  const std::vector<PreferencePair> pairs_;
  const int64_t num_heads_;
  const std::vector<double> counts_;
  const RewardModelLossOptions options_;
  std::vector<double> scales_;  // [heads] of the batch: 1 / (heads * sum of counts), or 0
};

}  // namespace tandem::trainer
