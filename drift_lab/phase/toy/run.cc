#include "drift_lab/phase/toy/run.h"

#include <algorithm>
#include <cmath>
#include <deque>

#include "drift_lab/phase/toy/adam.h"
#include "drift_lab/phase/toy/batch.h"
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

// The gradient of the loss with respect to the parameters. Gradients at the logits are added up by
// context first, so that the backward pass runs once per context.
class PolicyGradient {
 public:
  PolicyGradient(int length, size_t num_parameters)
      : at_logits_(static_cast<size_t>(NumContexts(length))), gradient_(num_parameters) {}

  const Parameters& Compute(const Batch& batch, const TokenWeights& weights, ContextTable& policy) {
    const auto count = static_cast<double>(batch.tokens.size());
    for (size_t t = 0; t < batch.tokens.size(); ++t) {
      const double coefficient = -weights.weight[t] * batch.advantages[t] / count;
      if (coefficient == 0) continue;
      AddScore(batch.contexts[t], batch.tokens[t], coefficient, policy);
    }
    std::fill(gradient_.begin(), gradient_.end(), 0.0);
    for (const int context : touched_) {
      Distribution& at_logits = at_logits_[static_cast<size_t>(context)].sum;
      AddGradient(policy.parameters(), policy.length(), ContextOf(context), policy.At(context),
                  at_logits, gradient_);
      at_logits_[static_cast<size_t>(context)] = {};
    }
    touched_.clear();
    return gradient_;
  }

 private:
  struct Entry {
    Distribution sum{};
    bool touched = false;
  };

  // Adds coefficient * grad log pi(token) at the logits, which is one-hot(token) - pi.
  void AddScore(int context, int token, double coefficient, ContextTable& policy) {
    Entry& entry = at_logits_[static_cast<size_t>(context)];
    if (!entry.touched) touched_.push_back(context);
    entry.touched = true;
    const Distribution& logprobs = policy.At(context).logprobs;
    for (size_t a = 0; a < kTokens; ++a) entry.sum[a] -= coefficient * std::exp(logprobs[a]);
    entry.sum[static_cast<size_t>(token)] += coefficient;
  }

  std::vector<Entry> at_logits_;
  std::vector<int> touched_;
  Parameters gradient_;
};

std::vector<float> TargetLogprobs(const Batch& batch, ContextTable& policy) {
  std::vector<float> logprobs(batch.tokens.size());
  for (size_t t = 0; t < logprobs.size(); ++t) {
    logprobs[t] = static_cast<float>(
        policy.At(batch.contexts[t]).logprobs[static_cast<size_t>(batch.tokens[t])]);
  }
  return logprobs;
}

// Takes the score after each step's update, in order.
void TakeScore(int step, int steps, double score, RunResult& result) {
  result.mean_score += score / steps;
  const int scored = std::min(kScoredUpdates, steps);
  if (step >= steps - scored) result.score += score / scored;
  result.highest = std::max(result.highest, score);
  if (result.halved_at < 0 && score < result.highest / 2) result.halved_at = step;
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

RunResult RunToy(const RunOptions& options) {
  const Task task(options.length, options.seed);
  Parameters target = WarmStart(task, options.warm_start, options.seed);
  // The weights after the last `lag` updates and now, oldest first. At the beginning, the oldest
  // are those of the start.
  std::deque<Parameters> published = {target};
  Adam adam(target.size(), {.learning_rate = options.learning_rate});
  BehaviourPolicy behaviour(options.gap, task, options.seed);
  ContextTable policy(options.length), sampled(options.length);
  PolicyGradient gradient(options.length, target.size());
  const RandomNumbers random(options.seed, Purpose::kToken);

  RunResult result;
  policy.Use(target);
  result.start = result.highest = task.PassProbability(policy);
  for (int step = 0; step < options.steps; ++step) {
    if (options.gap.lag > 0) sampled.Use(published.front());
    behaviour.Use(options.gap.lag > 0 ? sampled : policy, static_cast<uint32_t>(step));
    const Batch batch = SampleBatch(behaviour, task, random, static_cast<uint32_t>(step));
    const std::vector<float> logprobs = TargetLogprobs(batch, policy);
    const TokenWeights weights = ComputeWeights(options.method, logprobs, batch.behaviour_logprobs,
                                                batch.sequence, batch.advantages);
    const bool watched = step % kTraceStride == 0;
    if (watched) {
      result.trace.push_back(Watch(batch, logprobs, weights, task, policy, behaviour));
    }
    const double norm = adam.Update(gradient.Compute(batch, weights, policy), target);
    if (watched) At(result.trace.back(), Watched::kGradientNorm) = norm;
    policy.Use(target);
    TakeScore(step, options.steps, task.PassProbability(policy), result);
    published.push_back(target);
    if (static_cast<int>(published.size()) > options.gap.lag + 1) published.pop_front();
  }
  return result;
}

}  // namespace tandem::drift
