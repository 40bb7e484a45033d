#include "trainer/prompts/success_counts.h"

#include <cstddef>

namespace tandem::trainer {

SuccessCounts::SuccessCounts(int64_t num_prompts, double fading)
    : fading_(fading), counts_(static_cast<size_t>(num_prompts)) {
  for (size_t i = 0; i < counts_.size(); ++i) counts_[i].prompt = static_cast<int64_t>(i);
}

void SuccessCounts::Add(int64_t prompt, int64_t successes, int64_t failures) {
  if (successes + failures == 0) return;
  PromptCounts& counts = counts_[static_cast<size_t>(prompt)];
  counts.successes = fading_ * counts.successes + static_cast<double>(successes);
  counts.failures = fading_ * counts.failures + static_cast<double>(failures);
  ++counts.groups;
}

double SuccessCounts::Mean(int64_t prompt) const {
  const PromptCounts& counts = Of(prompt);
  return (1 + counts.successes) / (2 + counts.successes + counts.failures);
}

double SuccessCounts::ExpectedVariance(int64_t prompt) const {
  const double a = 1 + Of(prompt).successes, b = 1 + Of(prompt).failures;
  return a * b / ((a + b) * (a + b + 1));
}

std::vector<PromptCounts> SuccessCounts::Save() const {
  std::vector<PromptCounts> saved;
  for (const PromptCounts& counts : counts_) {
    if (counts.groups > 0) saved.push_back(counts);
  }
  return saved;
}

void SuccessCounts::Restore(const std::vector<PromptCounts>& saved) {
  for (const PromptCounts& counts : saved) {
    if (counts.prompt < 0 || counts.prompt >= num_prompts()) continue;
    counts_[static_cast<size_t>(counts.prompt)] = counts;
  }
}

}  // namespace tandem::trainer
