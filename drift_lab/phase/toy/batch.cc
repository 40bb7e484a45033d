#include "drift_lab/phase/toy/batch.h"

#include <cmath>

namespace tandem::drift {
namespace {

// Samples one completion, appends it to the batch, and returns its tokens.
std::span<const int> DrawCompletion(BehaviourPolicy& behaviour, const Task& task,
                                    const RandomNumbers& random, uint32_t step, int completion,
                                    Batch& batch) {
  const int prompt = completion / kGroup;
  const size_t begin = batch.tokens.size();
  int previous = kStart;
  for (int t = 0; t < task.length(); ++t) {
    const int context = ContextIndex({prompt, t, previous});
    const Distribution& mu = behaviour.At(context, static_cast<uint32_t>(completion));
    previous = DrawToken(
        mu, random.Uniform(step, static_cast<uint32_t>(completion), static_cast<uint32_t>(t)));
    batch.contexts.push_back(context);
    batch.tokens.push_back(previous);
    batch.behaviour_logprobs.push_back(static_cast<float>(mu[static_cast<size_t>(previous)]));
    batch.sequence.push_back(completion);
  }
  return std::span(batch.tokens).subspan(begin);
}

}  // namespace

std::vector<float> Advantages(std::span<const double> rewards) {
  std::vector<float> advantages;
  for (size_t begin = 0; begin < rewards.size(); begin += kGroup) {
    const auto group = rewards.subspan(begin, kGroup);
    double sum = 0, squares = 0;
    for (const double reward : group) sum += reward;
    const double mean = sum / kGroup;
    for (const double reward : group) squares += (reward - mean) * (reward - mean);
    const double deviation = std::sqrt(squares / (kGroup - 1));
    for (const double reward : group) {
      advantages.push_back(static_cast<float>((reward - mean) / (deviation + 1e-4)));
    }
  }
  return advantages;
}

Batch SampleBatch(BehaviourPolicy& behaviour, const Task& task, const RandomNumbers& random,
                  uint32_t step) {
  Batch batch;
  for (int completion = 0; completion < kCompletions; ++completion) {
    const auto tokens = DrawCompletion(behaviour, task, random, step, completion, batch);
    batch.rewards.push_back(task.Reward(completion / kGroup, tokens));
  }
  const std::vector<float> advantages = Advantages(batch.rewards);
  for (const int32_t completion : batch.sequence) {
    batch.advantages.push_back(advantages[static_cast<size_t>(completion)]);
  }
  return batch;
}

}  // namespace tandem::drift
