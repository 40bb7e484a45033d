#include "trainer/metrics/step_report.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/base/json.h"

namespace tandem::trainer {
namespace {

constexpr double kBinsPerUnit = 5;

size_t Bin(double weight) {
  const double last = static_cast<double>(WeightHistogram().size() - 1);
  return static_cast<size_t>(std::clamp(weight * kBinsPerUnit, 0.0, last));
}

double MeanOver(double sum, int64_t num_tokens) {
  return num_tokens == 0 ? 0 : sum / static_cast<double>(num_tokens);
}

std::string ToJson(const offpolicy::Interval& interval) {
  return absl::StrCat("[", JsonNumber(interval.value), ",", JsonNumber(interval.low), ",",
                      JsonNumber(interval.high), "]");
}

std::string ToJson(const std::vector<offpolicy::DriftBucket>& buckets) {
  std::string json = "{";
  for (const offpolicy::DriftBucket& bucket : buckets) {
    absl::StrAppend(&json, json.size() > 1 ? "," : "", "\"", bucket.label,
                    "\":{\"tokens\":", JsonNumber(bucket.sums.tokens),
                    ",\"mean_delta\":", ToJson(bucket.mean_delta),
                    ",\"mean_abs_delta\":", ToJson(bucket.mean_abs_delta),
                    ",\"k3\":", ToJson(bucket.k3), ",\"mean_w\":", ToJson(bucket.mean_w), "}");
  }
  return json + "}";
}

// 1 where there is nothing to keep: nothing was lost.
double KeptFraction(const KeptShare& share) {
  return share.num_trained == 0 ? 1
                                : MeanOver(static_cast<double>(share.num_kept), share.num_trained);
}

double MeanWeight(const KeptShare& share) {
  return share.num_kept == 0 ? 1 : MeanOver(share.weight_sum, share.num_kept);
}

void AddCritic(const CriticNumbers& critic, std::vector<std::pair<std::string, double>>& numbers) {
  const auto add = [&](const char* name, double value) { numbers.emplace_back(name, value); };
  add("critic/loss", MeanOver(critic.loss_sum, critic.num_tokens));
  add("critic/clip_share", MeanOver(static_cast<double>(critic.num_clipped), critic.num_tokens));
  add("critic/value_mean", critic.value_mean);
  add("critic/target_mean", critic.target_mean);
  add("critic/explained_variance", critic.explained_variance);
  add("critic/learning_rate", critic.learning_rate);
  add("critic/grad_norm", critic.grad_norm);
  add("critic/num_updates", static_cast<double>(critic.num_updates));
  add("critic/skipped_updates", static_cast<double>(critic.skipped_updates));
  add("critic/warms_up", critic.warms_up ? 1 : 0);
  add("memory/critic_bytes", static_cast<double>(critic.held_bytes));
}

void AddPairs(const PairNumbers& sums, const PairWeights& pairs,
              std::vector<std::pair<std::string, double>>& numbers) {
  const auto add = [&](const char* name, double value) { numbers.emplace_back(name, value); };
  const auto share = [](int64_t part, int64_t whole) {
    return MeanOver(static_cast<double>(part), whole);
  };
  if (sums.num_pairs > 0) {
    for (const auto& [name, sum] : kPairNumbers) add(name, sums.*sum / sums.num_pairs);
  }
  add("pairs/count", static_cast<double>(pairs.num_pairs));
  add("pairs/refused_share", share(pairs.num_pairs - pairs.num_kept, pairs.num_pairs));
  add("pairs/bounded_share", share(pairs.num_bounded, pairs.num_kept));
  add("pairs/mean_weight", MeanOver(pairs.weight_sum, pairs.num_kept));
  // Kish's effective sample size over the number of pairs.
  const double squares = pairs.weight_square_sum * static_cast<double>(pairs.num_kept);
  add("pairs/ess", squares == 0 ? 0 : pairs.weight_sum * pairs.weight_sum / squares);
  add("pairs/stale_share", share(pairs.num_stale, pairs.num_pairs));
  add("pairs/mixed_versions_share", share(pairs.num_mixed, pairs.num_pairs));
  add("pairs/staleness_mean", MeanOver(pairs.staleness_sum, pairs.num_pairs));
  add("pairs/staleness_max", static_cast<double>(pairs.staleness_max));
}

}  // namespace

void CorrectionNumbers::Add(double raw_weight, double weight) {
  ++num_kept;
  weight_sum += weight;
  raw_weight_sum += raw_weight;
  max_weight = std::max(max_weight, weight);
  ++hist_raw[Bin(raw_weight)];
  ++hist_truncated[Bin(weight)];
}

void CorrectionNumbers::AddShare(double advantage, int64_t length, bool kept, double weight) {
  const auto bucket = std::ranges::lower_bound(kLengthEdges, length) - kLengthEdges.begin();
  KeptShare none;
  KeptShare& of_sign = advantage > 0 ? positive : advantage < 0 ? negative : none;
  for (KeptShare* share : {&by_length[static_cast<size_t>(bucket)], &of_sign}) {
    ++share->num_trained;
    if (!kept) continue;
    ++share->num_kept;
    share->weight_sum += weight;
  }
}

int64_t TransientBytes(const StepReport& report) {
  const HeldMemory& memory = report.memory;
  if (!memory.device.has_value()) return 0;
  return memory.device->allocated - memory.masters - memory.gradients - memory.reference -
         report.optimizer.state_bytes;
}

std::vector<std::pair<std::string, double>> NamedNumbers(const StepReport& report) {
  auto numbers = offpolicy::NamedDriftMetrics(report.drift);
  const auto add = [&](const char* name, double value) { numbers.emplace_back(name, value); };
  const CorrectionNumbers& correction = report.correction;
  add("correction/mean_weight", MeanOver(correction.weight_sum, correction.num_kept));
  add("correction/max_weight", correction.max_weight);
  add("correction/mean_weight_raw", MeanOver(correction.raw_weight_sum, correction.num_kept));
  add("correction/capped_share",
      MeanOver(static_cast<double>(correction.num_capped), correction.num_kept));
  add("correction/rejected_tokens", static_cast<double>(correction.num_rejected));
  add("correction/positive_kept_fraction", KeptFraction(correction.positive));
  add("correction/negative_kept_fraction", KeptFraction(correction.negative));
  add("correction/positive_mean_weight", MeanWeight(correction.positive));
  add("correction/negative_mean_weight", MeanWeight(correction.negative));
  add("correction/kept_fraction_to_64", KeptFraction(correction.by_length[0]));
  add("correction/kept_fraction_to_512", KeptFraction(correction.by_length[1]));
  add("correction/kept_fraction_to_4096", KeptFraction(correction.by_length[2]));
  add("correction/kept_fraction_over_4096", KeptFraction(correction.by_length[3]));
  const LossNumbers& loss = report.loss;
  // While a critic warms up there is no loss of the policy: a 0 would look like one.
  const bool has_loss = loss.num_updates > 0;
  if (has_loss) {
    add("loss/policy", loss.policy);
    add("loss/kl", loss.kl);
    add("loss/total", loss.total);
  }
  const auto add_token_numbers = [&](bool of_reference) {
    for (const auto& [name, value, is_max, needs_reference] : kTokenNumbers) {
      if (needs_reference != of_reference) continue;
      add(name, is_max ? loss.*value : MeanOver(loss.*value, loss.num_tokens));
    }
  };
  if (has_loss) {
    add_token_numbers(/*of_reference=*/false);
    add("loss/denominator", loss.denominator);
  }
  add("loss/num_tokens", static_cast<double>(report.num_tokens));
  add("loss/num_row_tokens", static_cast<double>(report.num_row_tokens));
  add("loss/num_updates", static_cast<double>(loss.num_updates));
  add("loss/kl_stopped", loss.kl_stopped ? 1 : 0);
  if (loss.has_reference) {
    if (has_loss) add_token_numbers(/*of_reference=*/true);
    add("kl_reference/reward_penalty", report.kl_penalty);
    add("kl_reference/coefficient", report.kl_coefficient);
    add("kl_reference/age", static_cast<double>(report.reference_age));
  }
  if (report.penalty_coefficient > 0) add("loss/penalty_coefficient", report.penalty_coefficient);
  if (report.critic.has_value()) AddCritic(*report.critic, numbers);
  if (report.pairs.has_value()) AddPairs(loss.pairs, *report.pairs, numbers);
  if (has_loss) {
    add("optimizer/learning_rate", report.optimizer.learning_rate);
    add("optimizer/grad_norm", report.optimizer.grad_norm);
  }
  add("optimizer/grad_clipped", report.optimizer.grad_clipped ? 1 : 0);
  add("optimizer/skipped_updates", static_cast<double>(report.optimizer.skipped_updates));
  add("optimizer/state_bytes", static_cast<double>(report.optimizer.state_bytes));
  add("memory/masters_bytes", static_cast<double>(report.memory.masters));
  add("memory/gradients_bytes", static_cast<double>(report.memory.gradients));
  add("memory/reference_bytes", static_cast<double>(report.memory.reference));
  if (report.memory.device.has_value()) {
    add("memory/device_peak_bytes", static_cast<double>(report.memory.device->allocated));
    add("memory/device_reserved_bytes", static_cast<double>(report.memory.device->reserved));
    add("memory/device_transient_bytes", static_cast<double>(TransientBytes(report)));
  }
  add("time/pack", report.times.pack_s);
  add("time/proximal", report.times.proximal_s);
  add("time/update", report.times.update_s);
  add("time/gradient_sum_wait", report.times.gradient_sum_wait_s);
  numbers.insert(numbers.end(), report.peer_metrics.begin(), report.peer_metrics.end());
  return numbers;
}

std::vector<std::pair<std::string, std::string>> NamedDocuments(const StepReport& report) {
  std::vector<std::pair<std::string, std::string>> documents;
  for (const auto& [by, buckets] : report.drift_splits) {
    documents.emplace_back("drift/by_" + std::string(offpolicy::SplitName(by)), ToJson(buckets));
  }
  return documents;
}

}  // namespace tandem::trainer
