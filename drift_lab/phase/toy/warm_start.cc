#include "drift_lab/phase/toy/warm_start.h"

#include <algorithm>
#include <cmath>

#include "drift_lab/phase/toy/adam.h"
#include "drift_lab/phase/toy/random_numbers.h"

namespace tandem::drift {
namespace {

// The gradient of the mean cross entropy over all prompts and positions.
void AddCrossEntropy(const Task& task, double context_noise, const RandomNumbers& random,
                     uint32_t update, ContextTable& policy, Parameters& gradient) {
  const double count = kPrompts * task.length();
  for (int prompt = 0; prompt < kPrompts; ++prompt) {
    for (int t = 0; t < task.length(); ++t) {
      const auto row = static_cast<uint32_t>(prompt), column = static_cast<uint32_t>(2 * t);
      Context context{prompt, t, t == 0 ? kStart : task.target(prompt, t - 1)};
      if (t > 0 && random.Uniform(update, row, column) < context_noise) {
        context.previous = random.Below(kTokens, update, row, column + 1);
      }
      const Evaluation& evaluation = policy.At(ContextIndex(context));
      Distribution at_logits;
      for (size_t a = 0; a < kTokens; ++a) at_logits[a] = std::exp(evaluation.logprobs[a]) / count;
      at_logits[static_cast<size_t>(task.target(prompt, t))] -= 1 / count;
      AddGradient(policy.parameters(), task.length(), context, evaluation, at_logits, gradient);
    }
  }
}

}  // namespace

Parameters WarmStart(const Task& task, const WarmStartOptions& options, uint64_t seed) {
  Parameters parameters = InitialParameters(task.length(), seed);
  Adam adam(parameters.size(), {.learning_rate = options.learning_rate});
  const RandomNumbers random(seed, Purpose::kWarmStart);
  ContextTable policy(task.length());
  Parameters gradient(parameters.size());
  for (int update = 0; update < options.max_updates; ++update) {
    policy.Use(parameters);
    if (task.PassProbability(policy) >= options.pass_probability) break;
    std::fill(gradient.begin(), gradient.end(), 0.0);
    AddCrossEntropy(task, options.context_noise, random, static_cast<uint32_t>(update), policy,
                    gradient);
    adam.Update(gradient, parameters);
  }
  return parameters;
}

}  // namespace tandem::drift
