#include "drift_lab/phase/toy/trace.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "common/drift/drift_metrics.h"

namespace tandem::drift {
namespace {

constexpr std::array<const char*, kNumWatched> kWatchedNames = {"score",
                                                                "reward",
                                                                "k3",
                                                                "ess",
                                                                "tail",
                                                                "mean_w",
                                                                "outside",
                                                                "dropped",
                                                                "kept_positive",
                                                                "kept_negative",
                                                                "gradient_norm",
                                                                "entropy",
                                                                "max_logit",
                                                                "kl"};

void WatchWeights(const Batch& batch, const TokenWeights& weights, TraceRow& row) {
  double kept = 0, positive = 0, negative = 0, kept_positive = 0, kept_negative = 0;
  for (size_t t = 0; t < batch.tokens.size(); ++t) {
    kept += weights.kept[t];
    positive += batch.advantages[t] > 0;
    negative += batch.advantages[t] < 0;
    kept_positive += batch.advantages[t] > 0 && weights.kept[t];
    kept_negative += batch.advantages[t] < 0 && weights.kept[t];
  }
  const auto share = [](double part, double whole) {
    return whole > 0 ? part / whole : std::numeric_limits<double>::quiet_NaN();
  };
  At(row, Watched::kDropped) = 1 - kept / static_cast<double>(batch.tokens.size());
  At(row, Watched::kKeptPositive) = share(kept_positive, positive);
  At(row, Watched::kKeptNegative) = share(kept_negative, negative);
}

void WatchPolicy(const Batch& batch, ContextTable& policy, BehaviourPolicy& behaviour,
                 TraceRow& row) {
  const auto count = static_cast<double>(batch.tokens.size());
  double entropy = 0, kl = 0, max_logit = -std::numeric_limits<double>::infinity();
  for (size_t t = 0; t < batch.tokens.size(); ++t) {
    const Evaluation& pi = policy.At(batch.contexts[t]);
    const Distribution& mu =
        behaviour.At(batch.contexts[t], static_cast<uint32_t>(batch.sequence[t]));
    entropy += Entropy(pi.logprobs);
    kl += KlDivergence(mu, pi.logprobs);
    max_logit = std::max(max_logit, *std::max_element(pi.logits.begin(), pi.logits.end()));
  }
  At(row, Watched::kEntropy) = entropy / count;
  At(row, Watched::kKl) = kl / count;
  At(row, Watched::kMaxLogit) = max_logit;
}

void WatchRatios(const Batch& batch, std::span<const float> target_logprobs, TraceRow& row) {
  const size_t count = batch.tokens.size();
  const std::vector<float> unused(count, std::numeric_limits<float>::quiet_NaN());
  const std::vector<uint8_t> all(count, 1);
  const std::vector<int32_t> zeros(count), of_sequences(batch.rewards.size());
  const offpolicy::DriftTally drift = offpolicy::TallyDrift(
      {batch.behaviour_logprobs, target_logprobs, unused, unused, batch.advantages, batch.sequence,
       zeros, zeros, all, of_sequences, of_sequences});
  At(row, Watched::kK3) = drift.sums.mean_k3();
  At(row, Watched::kEss) = drift.sums.ess_fraction();
  At(row, Watched::kTail) = drift.abs_delta.Quantile(0.999);
  At(row, Watched::kMeanW) = drift.sums.mean_w();
  double outside = 0;
  for (size_t t = 0; t < count; ++t) {
    outside += std::abs(target_logprobs[t] - batch.behaviour_logprobs[t]) > std::log(2.0);
  }
  At(row, Watched::kOutside) = outside / static_cast<double>(count);
}

}  // namespace

const char* WatchedName(Watched watched) { return kWatchedNames[static_cast<size_t>(watched)]; }

TraceRow Watch(const Batch& batch, std::span<const float> target_logprobs,
               const TokenWeights& weights, const Task& task, ContextTable& policy,
               BehaviourPolicy& behaviour) {
  TraceRow row{};
  At(row, Watched::kScore) = task.PassProbability(policy);
  double reward = 0;
  for (const double of_one : batch.rewards) reward += of_one;
  At(row, Watched::kReward) = reward / static_cast<double>(batch.rewards.size());
  WatchWeights(batch, weights, row);
  WatchPolicy(batch, policy, behaviour, row);
  WatchRatios(batch, target_logprobs, row);
  return row;
}

}  // namespace tandem::drift
