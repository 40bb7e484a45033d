#include "trainer/rewards/judge/pairing.h"

#include <algorithm>
#include <numeric>

#include "common/base/check.h"
#include "common/base/stable_random.h"

namespace tandem::trainer {
namespace {

// Fisher-Yates, with draws that are the same everywhere.
std::vector<size_t> ShuffledOrder(size_t n, uint64_t seed) {
  std::vector<size_t> order(n);
  std::iota(order.begin(), order.end(), size_t{0});
  for (size_t i = n; i > 1; --i) {
    std::swap(order[i - 1], order[StableHash({seed, i}) % i]);
  }
  return order;
}

}  // namespace

std::vector<CompletionPair> MakePairs(size_t n, int64_t opponents, uint64_t seed) {
  std::vector<CompletionPair> pairs;
  const auto add = [&pairs](size_t i, size_t j) {
    pairs.emplace_back(std::min(i, j), std::max(i, j));
  };
  const auto wanted = static_cast<size_t>(opponents);
  if (wanted == 0 || wanted + 1 >= n) {
    for (size_t i = 0; i < n; ++i) {
      for (size_t j = i + 1; j < n; ++j) add(i, j);
    }
    return pairs;
  }
  const std::vector<size_t> ring = ShuffledOrder(n, seed);
  const size_t reach = n % 2 == 1 ? (wanted + 1) / 2 : wanted / 2;  // neighbours on each side
  for (size_t i = 0; i < n; ++i) {
    for (size_t step = 1; step <= reach; ++step) add(ring[i], ring[(i + step) % n]);
  }
  // An odd number of opponents in an even ring: the one on the other side as well.
  if (n % 2 == 0 && wanted % 2 == 1) {
    for (size_t i = 0; i < n / 2; ++i) add(ring[i], ring[i + n / 2]);
  }
  std::ranges::sort(pairs);
  return pairs;
}

std::vector<RewardQuestion> PairQuestions(const std::shared_ptr<const HeldGroup>& group,
                                          const std::vector<CompletionPair>& pairs) {
  std::vector<RewardQuestion> questions;
  for (const auto& [first, second] : pairs) {
    questions.push_back({.group = group, .index = first, .other = second});
    questions.push_back({.group = group, .index = second, .other = first});
  }
  return questions;
}

PairwiseRewards ScorePairs(size_t n, const std::vector<CompletionPair>& pairs,
                           const std::vector<RewardAnswer>& verdicts) {
  TANDEM_CHECK(verdicts.size() == 2 * pairs.size());
  PairwiseRewards rewards;
  std::vector<double> sums(n, 0), counts(n, 0);
  std::vector<absl::Status> failures(n);
  for (size_t p = 0; p < pairs.size(); ++p) {
    const auto [first, second] = pairs[p];
    const RewardAnswer& shown_first = verdicts[2 * p];
    const RewardAnswer& shown_second = verdicts[2 * p + 1];
    if (!shown_first.ok() || !shown_second.ok()) {
      failures[first] = failures[second] =
          shown_first.ok() ? shown_second.status() : shown_first.status();
      continue;
    }
    const double wins_as_a = shown_first->value, wins_as_b = 1 - shown_second->value;
    const double won = (wins_as_a + wins_as_b) / 2;
    ++rewards.num_judged;
    rewards.num_disagreements += wins_as_a != wins_as_b;
    sums[first] += won;
    sums[second] += 1 - won;
    ++counts[first];
    ++counts[second];
  }
  for (size_t i = 0; i < n; ++i) {
    if (counts[i] > 0) {
      rewards.answers.emplace_back(ExternalAnswer{.value = sums[i] / counts[i]});
    } else if (!failures[i].ok()) {
      rewards.answers.emplace_back(failures[i]);
    } else {
      rewards.answers.emplace_back(ExternalAnswer{.value = 0.5});
    }
  }
  return rewards;
}

}  // namespace tandem::trainer
