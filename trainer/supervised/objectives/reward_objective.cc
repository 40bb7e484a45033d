#include "trainer/supervised/objectives/reward_objective.h"

#include <cmath>

#include "common/base/check.h"
#include "common/base/stable_random.h"

namespace tandem::trainer {

std::vector<double> BootstrapCounts(int64_t num_heads, int64_t count, uint64_t seed) {
  std::vector<double> counts(static_cast<size_t>(num_heads * count), 0);
  for (int64_t head = 0; head < num_heads; ++head) {
    for (int64_t draw = 0; draw < count; ++draw) {
      const uint64_t random =
          StableHash({seed, static_cast<uint64_t>(head), static_cast<uint64_t>(draw)});
      ++counts[static_cast<size_t>(head * count) + random % static_cast<uint64_t>(count)];
    }
  }
  return counts;
}

RewardObjective::RewardObjective(std::vector<PreferencePair> pairs, int64_t num_heads,
                                 std::vector<double> counts, const RewardModelLossOptions& options)
    : pairs_(std::move(pairs)),
      num_heads_(num_heads),
      counts_(std::move(counts)),
      options_(options) {
  TANDEM_CHECK(counts_.empty() || counts_.size() == pairs_.size() * static_cast<size_t>(num_heads));
}

GroupTokens RewardObjective::Example(int64_t example) const {
  const PreferencePair& pair = pairs_[static_cast<size_t>(example)];
  return {.prompt = pair.prompt, .completions = {pair.chosen, pair.rejected}};
}

std::vector<ScorePlace> RewardObjective::ScorePlaces(int64_t example) const {
  const PreferencePair& pair = pairs_[static_cast<size_t>(example)];
  return {{0, static_cast<int64_t>(pair.chosen.size()) - 1},
          {1, static_cast<int64_t>(pair.rejected.size()) - 1}};
}

void RewardObjective::BeginBatch(std::span<const int64_t> examples, double /*sum_before*/) {
  scales_.assign(static_cast<size_t>(num_heads_), 0);
  for (int64_t head = 0; head < num_heads_; ++head) {
    double total = 0;
    for (const int64_t example : examples) total += Count(head, example);
    if (total > 0) {
      scales_[static_cast<size_t>(head)] = 1 / (total * static_cast<double>(num_heads_));
    }
  }
}

std::vector<std::string> RewardObjective::MetricNames() const {
  return {"rewards/chosen", "rewards/rejected", "rewards/margins", "rewards/accuracies",
          "disagreement"};
}

double RewardObjective::Loss(int64_t example, const ExampleScores& scores, ExampleSlopes* slopes,
                             std::span<MetricSum> metrics) const {
  const auto num_heads = static_cast<size_t>(num_heads_);
  const double margin = pairs_[static_cast<size_t>(example)].margin.value_or(0);
  double value = 0, chosen_sum = 0, rejected_sum = 0, squares = 0;
  for (size_t head = 0; head < num_heads; ++head) {
    const double chosen = scores.heads[head], rejected = scores.heads[num_heads + head];
    const RewardModelLoss loss = ComputeRewardModelLoss(
        {.chosen = {&chosen, 1}, .rejected = {&rejected, 1}, .margins = {&margin, 1}}, options_);
    const double scale = scales_[head] * Count(static_cast<int64_t>(head), example);
    value += scale * loss.value[0];
    chosen_sum += chosen;
    rejected_sum += rejected;
    squares += (chosen - rejected) * (chosen - rejected);
    if (slopes == nullptr) continue;
    slopes->heads[head] = static_cast<float>(scale * loss.chosen_slope[0]);
    slopes->heads[num_heads + head] = static_cast<float>(scale * loss.rejected_slope[0]);
  }
  const auto count = static_cast<double>(num_heads);
  const double mean_margin = (chosen_sum - rejected_sum) / count;
  metrics[0].Add(chosen_sum / count);
  metrics[1].Add(rejected_sum / count);
  metrics[2].Add(mean_margin);
  metrics[3].Add(chosen_sum > rejected_sum ? 1 : 0);
  metrics[4].Add(std::sqrt(std::max(0.0, squares / count - mean_margin * mean_margin)));
  return value;
}

}  // namespace tandem::trainer
