// CompletionObjective: supervised fine-tuning. The loss of a batch is the mean negative log-prob of
// the tokens of its completions; prompts are not learned. Used by `tandem sft`.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "trainer/preferences/preference_data.h"
#include "trainer/supervised/supervised_objective.h"

namespace tandem::trainer {

class CompletionObjective : public SupervisedObjective {
 public:
  // The labels are not read.
  explicit CompletionObjective(std::vector<LabelledCompletion> examples)
      : examples_(std::move(examples)) {}

  int64_t num_examples() const override { return static_cast<int64_t>(examples_.size()); }
  GroupTokens Example(int64_t example) const override;
  void BeginBatch(std::span<const int64_t> examples, double sum_before) override;
  double Loss(int64_t example, const ExampleScores& scores, ExampleSlopes* slopes,
              std::span<MetricSum> metrics) const override;
  std::vector<std::string> MetricNames() const override { return {}; }

 private:
  const std::vector<LabelledCompletion> examples_;
  double scale_ = 0;  // 1 / number of completion tokens of the batch
};

}  // namespace tandem::trainer
