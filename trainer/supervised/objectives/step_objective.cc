#include "trainer/supervised/objectives/step_objective.h"

#include "trainer/preferences/log_sigmoid.h"
#include "trainer/preferences/process_reward.h"

namespace tandem::trainer {

GroupTokens StepObjective::Example(int64_t example) const {
  const LabelledSteps& own = examples_[static_cast<size_t>(example)];
  return {.prompt = own.prompt, .completions = {own.completion}};
}

std::vector<ScorePlace> StepObjective::ScorePlaces(int64_t example) const {
  std::vector<ScorePlace> places;
  for (const int64_t end : examples_[static_cast<size_t>(example)].step_ends) {
    places.push_back({0, end - 1});
  }
  return places;
}

void StepObjective::BeginBatch(std::span<const int64_t> examples, double /*sum_before*/) {
  size_t steps = 0;
  for (const int64_t example : examples) {
    steps += examples_[static_cast<size_t>(example)].labels.size();
  }
  scale_ = 1 / static_cast<double>(steps);
}

std::vector<std::string> StepObjective::MetricNames() const {
  return {"probabilities/right", "probabilities/wrong", "accuracies"};
}

double StepObjective::Loss(int64_t example, const ExampleScores& scores, ExampleSlopes* slopes,
                           std::span<MetricSum> metrics) const {
  const std::vector<double>& labels = examples_[static_cast<size_t>(example)].labels;
  const std::vector<double> logits(scores.heads.begin(), scores.heads.end());
  const StepLoss loss = ComputeStepLoss(logits, labels);
  double value = 0;
  for (size_t s = 0; s < labels.size(); ++s) {
    value += loss.value[s];
    const bool is_right = labels[s] > 0.5;
    metrics[is_right ? 0 : 1].Add(Sigmoid(logits[s]));
    metrics[2].Add((logits[s] > 0) == is_right ? 1 : 0);
    if (slopes != nullptr) slopes->heads[s] = static_cast<float>(scale_ * loss.slope[s]);
  }
  return scale_ * value;
}

}  // namespace tandem::trainer
