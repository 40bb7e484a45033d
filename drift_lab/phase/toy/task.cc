#include "drift_lab/phase/toy/task.h"

#include <algorithm>
#include <cmath>

#include "drift_lab/phase/toy/random_numbers.h"

namespace tandem::drift {

Task::Task(int length, uint64_t seed) : length_(length) {
  const RandomNumbers random(seed, Purpose::kTarget);
  for (int prompt = 0; prompt < kPrompts; ++prompt) {
    for (int t = 0; t < length; ++t) {
      targets_.push_back(
          random.Below(kTokens, 0, static_cast<uint32_t>(prompt), static_cast<uint32_t>(t)));
    }
  }
}

double Task::Reward(int prompt, std::span<const int> completion) const {
  const auto string = targets_.begin() + static_cast<std::ptrdiff_t>(prompt) * length_;
  return std::equal(completion.begin(), completion.end(), string, string + length_) ? 1 : 0;
}

double Task::PassProbability(ContextTable& policy) const {
  double sum = 0;
  for (int prompt = 0; prompt < kPrompts; ++prompt) {
    double logprob = 0;
    int previous = kStart;
    for (int t = 0; t < length_; ++t) {
      const int token = target(prompt, t);
      logprob +=
          policy.At(ContextIndex({prompt, t, previous})).logprobs[static_cast<size_t>(token)];
      previous = token;
    }
    sum += std::exp(logprob);
  }
  return sum / kPrompts;
}

}  // namespace tandem::drift
