#include "trainer/supervised/objectives/completion_objective.h"

#include <algorithm>

namespace tandem::trainer {

GroupTokens CompletionObjective::Example(int64_t example) const {
  const LabelledCompletion& own = examples_[static_cast<size_t>(example)];
  return {.prompt = own.prompt, .completions = {own.completion}};
}

void CompletionObjective::BeginBatch(std::span<const int64_t> examples, double /*sum_before*/) {
  size_t tokens = 0;
  for (const int64_t example : examples) {
    tokens += examples_[static_cast<size_t>(example)].completion.size();
  }
  scale_ = 1 / static_cast<double>(tokens);
}

double CompletionObjective::Loss(int64_t /*example*/, const ExampleScores& scores,
                                 ExampleSlopes* slopes, std::span<MetricSum> /*metrics*/) const {
  double sum = 0;
  for (const float logprob : scores.logprobs[0]) sum += logprob;
  if (slopes != nullptr) std::ranges::fill(slopes->logprobs[0], static_cast<float>(-scale_));
  return -scale_ * sum;
}

}  // namespace tandem::trainer
