// StepObjective: process reward models (process_reward.h). One head scores the last token of each
// step of a completion, and the loss is the binary cross-entropy with the step's label, averaged
// over the steps of the batch. Used by `tandem train-reward-model --process`.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "trainer/preferences/step_data.h"
#include "trainer/supervised/supervised_objective.h"

namespace tandem::trainer {

class StepObjective : public SupervisedObjective {
 public:
  explicit StepObjective(std::vector<LabelledSteps> examples) : examples_(std::move(examples)) {}

  int64_t num_examples() const override { return static_cast<int64_t>(examples_.size()); }
  GroupTokens Example(int64_t example) const override;
  int64_t num_heads() const override { return 1; }
  std::vector<ScorePlace> ScorePlaces(int64_t example) const override;
  void BeginBatch(std::span<const int64_t> examples, double sum_before) override;
  double Loss(int64_t example, const ExampleScores& scores, ExampleSlopes* slopes,
              std::span<MetricSum> metrics) const override;
  // Mean probabilities of steps with a label over one half and of the others, and the share of
  // steps on the right side of one half.
  std::vector<std::string> MetricNames() const override;

 private:
  const std::vector<LabelledSteps> examples_;
  double scale_ = 0;  // 1 / number of steps of the batch
};

}  // namespace tandem::trainer
