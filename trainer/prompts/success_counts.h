// SuccessCounts: how often completions of each prompt were correct, as the posterior of a Bernoulli
// rate under a Beta(1, 1) prior (start of stage 1). What curriculum.h and group_sizes.h choose by,
// and what a checkpoint keeps of it. Pure.
#pragma once

#include <cstdint>
#include <vector>

namespace tandem::trainer {

// Counts of one prompt; those of earlier groups have faded, because the policy changes.
struct PromptCounts {
  int64_t prompt = 0;  // position in the file, lines left out not counted
  double successes = 0, failures = 0;
  int64_t groups = 0;  // that were counted
};

// Thread-compatible.
class SuccessCounts {
 public:
  // Each group of a prompt multiplies what was counted before by `fading` in [0, 1].
  SuccessCounts(int64_t num_prompts, double fading);

  // A group of `prompt` had so many correct and wrong completions. Nothing where it had none.
  void Add(int64_t prompt, int64_t successes, int64_t failures);

  // With a = 1 + successes, b = 1 + failures: a / (a + b), the mean rate.
  double Mean(int64_t prompt) const;
  // E[p (1 - p)] = a b / ((a + b) (a + b + 1)), the expected variance of a completion's reward; at
  // most 1/4.
  double ExpectedVariance(int64_t prompt) const;

  int64_t num_prompts() const { return static_cast<int64_t>(counts_.size()); }
  const PromptCounts& Of(int64_t prompt) const { return counts_[static_cast<size_t>(prompt)]; }

  // Those with a group, by position; and the way back. A prompt that is not there is ignored.
  std::vector<PromptCounts> Save() const;
  void Restore(const std::vector<PromptCounts>& saved);

 private:
  const double fading_;
  std::vector<PromptCounts> counts_;
};

}  // namespace tandem::trainer
