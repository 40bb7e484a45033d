#include "trainer/loss/pair_objective.h"

#include <algorithm>
#include <map>
#include <set>

#include "common/base/status_macros.h"
#include "trainer/preferences/preference_loss.h"

namespace tandem::trainer {
namespace {

// Where the tokens of a row's pairs are, in order.
struct Places {
  std::vector<size_t> chosen, rejected;

  int64_t shorter() const { return static_cast<int64_t>(std::min(chosen.size(), rejected.size())); }
};

std::map<int64_t, Places> PlacesOf(const offpolicy::ObjectiveInputs& tokens) {
  std::map<int64_t, Places> pairs;
  for (size_t t = 0; t < tokens.kept.size(); ++t) {
    if (!tokens.kept[t]) continue;
    Places& pair = pairs[PairOf(tokens.completion[t])];
    (tokens.advantages[t] > 0 ? pair.chosen : pair.rejected).push_back(t);
  }
  return pairs;
}

// The summed log-probs of one completion of a pair.
double LogprobOf(std::span<const double> logprobs, const std::vector<size_t>& places,
                 int64_t shorter, double ld_alpha) {
  std::vector<double> own;
  for (const size_t t : places) own.push_back(logprobs[t]);
  return DesensitisedSum(own, shorter, ld_alpha);
}

// Derivatives by the log-probs of one completion: `slope` times the weight of each token in the sum,
// and `more`.
void WriteSlopes(const std::vector<size_t>& places, double slope, double more, int64_t shorter,
                 double ld_alpha, std::vector<double>& slopes) {
  for (size_t i = 0; i < places.size(); ++i) {
    slopes[places[i]] = slope * TokenWeight(static_cast<int64_t>(i), shorter, ld_alpha) + more;
  }
}

PreferenceLoss LossOf(const PairInputs& inputs, const Places& pair,
                      const PreferenceLossOptions& options) {
  const auto sum = [&](std::span<const double> logprobs, const std::vector<size_t>& places) {
    return logprobs.empty() ? 0 : LogprobOf(logprobs, places, pair.shorter(), options.ld_alpha);
  };
  const std::span<const double> target = inputs.tokens.target_logprobs;
  const double chosen = sum(target, pair.chosen), rejected = sum(target, pair.rejected);
  const double reference_chosen = sum(inputs.reference_logprobs, pair.chosen);
  const double reference_rejected = sum(inputs.reference_logprobs, pair.rejected);
  const auto chosen_tokens = static_cast<int64_t>(pair.chosen.size());
  const auto rejected_tokens = static_cast<int64_t>(pair.rejected.size());
  const double nll = -LogprobOf(target, pair.chosen, chosen_tokens, 1);
  return ComputePreferenceLoss({.chosen_logprobs = {&chosen, 1},
                                .rejected_logprobs = {&rejected, 1},
                                .reference_chosen_logprobs = {&reference_chosen, 1},
                                .reference_rejected_logprobs = {&reference_rejected, 1},
                                .chosen_tokens = {&chosen_tokens, 1},
                                .rejected_tokens = {&rejected_tokens, 1},
                                .margins = {},
                                .chosen_nll = {&nll, 1},
                                .nll_tokens = {&chosen_tokens, 1},
                                .batch_nll_tokens = inputs.mean_chosen_tokens},
                               options);
}

void AddPair(const PairInputs& inputs, const Places& pair, const PreferenceLoss& loss,
             PairNumbers& numbers) {
  const std::span<const double> target = inputs.tokens.target_logprobs;
  numbers.num_pairs += 1;
  numbers.loss += loss.value[0];
  numbers.chosen_reward += loss.chosen_reward[0];
  numbers.rejected_reward += loss.rejected_reward[0];
  numbers.margin += loss.chosen_reward[0] - loss.rejected_reward[0];
  numbers.accuracy += loss.chosen_reward[0] > loss.rejected_reward[0] ? 1 : 0;
  numbers.chosen_logprob += LogprobOf(target, pair.chosen, 0, 1);
  numbers.rejected_logprob += LogprobOf(target, pair.rejected, 0, 1);
}

}  // namespace

absl::Status CheckPairs(const ExperienceBatch& batch) {
  struct Members {
    int64_t chosen = 0, rejected = 0;
    std::set<int64_t> rows;
  };
  std::map<int64_t, Members> groups;
  for (const CompletionOrigin& completion : batch.completions) {
    const Microbatch& micro = batch.microbatches[static_cast<size_t>(completion.microbatch)];
    int64_t drawn = 0, above = 0, below = 0;  // tokens; those that were given have no advantage
    for (auto t = static_cast<size_t>(completion.begin); t < static_cast<size_t>(completion.end);
         ++t) {
      if (!micro.loss_mask[t]) continue;
      ++drawn;
      above += micro.advantages[t] > 0;
      below += micro.advantages[t] < 0;
    }
    Members& members = groups[completion.group];
    members.rows.insert(completion.microbatch);
    members.chosen += drawn > 0 && above == drawn;
    members.rejected += drawn > 0 && below == drawn;
  }
  for (const auto& [group, members] : groups) {
    if (members.chosen == 1 && members.rejected == 1 && members.rows.size() == 1) continue;
    return InvalidArgument(
        "group ", group, " of the batch is no pair: it has ", members.chosen,
        " trained completions with advantages above 0 and ", members.rejected,
        " with advantages below, in ", members.rows.size(),
        " rows; loss.kind preference reads one of each, which advantage.kind best_worst makes");
  }
  return absl::OkStatus();
}

void DropBrokenPairs(const Microbatch& micro, offpolicy::Correction& correction) {
  std::set<int64_t> broken;
  for (size_t t = 0; t < correction.kept.size(); ++t) {
    if (micro.loss_mask[t] && !correction.kept[t]) broken.insert(PairOf(micro.completion[t]));
  }
  std::set<int64_t> weighed;  // pairs of which something was kept
  for (size_t t = 0; t < correction.kept.size(); ++t) {
    const int64_t pair = PairOf(micro.completion[t]);
    if (!micro.loss_mask[t] || !correction.kept[t] || !broken.contains(pair)) continue;
    if (weighed.insert(pair).second) {
      correction.weight_sum -= correction.weight[t];
      --correction.num_weights;
    }
    correction.kept[t] = 0;
    correction.weight[t] = 0;
    correction.raw_weight[t] = 1;
    correction.centre_logprobs[t] = 0;
    ++correction.num_rejected;
  }
}

offpolicy::Objective ComputePairObjective(const PairInputs& inputs,
                                          const PreferenceLossOptions& options,
                                          PairNumbers& numbers) {
  const size_t length = inputs.tokens.kept.size();
  offpolicy::Objective result{.value = std::vector<double>(length),
                              .slope = std::vector<double>(length)};
  for (const auto& [number, pair] : PlacesOf(inputs.tokens)) {
    const PreferenceLoss loss = LossOf(inputs, pair, options);
    const size_t first = pair.chosen.front();
    const double weight = inputs.tokens.weight[first];
    result.value[first] = weight * loss.value[0];
    WriteSlopes(pair.chosen, weight * loss.chosen_slope[0], -weight * loss.nll_slope[0],
                pair.shorter(), options.ld_alpha, result.slope);
    WriteSlopes(pair.rejected, weight * loss.rejected_slope[0], 0, pair.shorter(), options.ld_alpha,
                result.slope);
    AddPair(inputs, pair, loss, numbers);
  }
  return result;
}

offpolicy::LossScales PairScales(std::span<const uint8_t> counted,
                                 std::span<const int32_t> completion) {
  offpolicy::LossScales scales{.scale = {counted.begin(), counted.end()}};
  std::set<int64_t> pairs;
  for (size_t t = 0; t < counted.size(); ++t) {
    if (counted[t]) pairs.insert(PairOf(completion[t]));
  }
  scales.denominator = static_cast<double>(pairs.size());
  return scales;
}

double MeanChosenTokens(const ExperienceBatch& batch, const Minibatch& mini) {
  int64_t tokens = 0, pairs = 0;
  for (auto m = static_cast<size_t>(mini.begin); m < static_cast<size_t>(mini.end); ++m) {
    const Microbatch& micro = batch.microbatches[m];
    for (size_t t = 0; t < micro.loss_mask.size(); ++t) {
      tokens += micro.loss_mask[t] && micro.advantages[t] > 0;
    }
    pairs += micro.num_completions / 2;
  }
  return static_cast<double>(tokens) / static_cast<double>(pairs);
}

void AddPairWeights(const offpolicy::Correction& correction, const Microbatch& micro,
                    WeightVersion version, PairWeights& numbers) {
  struct Pair {
    bool kept = false;
    double raw = 1, weight = 0;
    int64_t oldest = 0, newest = 0;
  };
  std::map<int64_t, Pair> pairs;
  for (size_t t = 0; t < micro.loss_mask.size(); ++t) {
    if (!micro.loss_mask[t]) continue;
    const int64_t of_token = micro.weight_versions[t];
    const auto found = pairs.find(PairOf(micro.completion[t]));
    Pair& pair = found != pairs.end() ? found->second
                                      : pairs[PairOf(micro.completion[t])] = {.oldest = of_token,
                                                                              .newest = of_token};
    pair.oldest = std::min(pair.oldest, of_token);
    pair.newest = std::max(pair.newest, of_token);
    if (!correction.kept[t]) continue;
    pair.kept = true;
    pair.raw = correction.raw_weight[t];
    pair.weight = correction.weight[t];
  }
  for (const auto& [number, pair] : pairs) {
    const int64_t staleness = version.value - pair.oldest;
    ++numbers.num_pairs;
    numbers.num_stale += staleness > 0;
    numbers.num_mixed += pair.newest != pair.oldest;
    numbers.staleness_sum += static_cast<double>(staleness);
    numbers.staleness_max = std::max(numbers.staleness_max, staleness);
    if (!pair.kept) continue;
    ++numbers.num_kept;
    numbers.num_bounded += pair.weight != pair.raw;
    numbers.weight_sum += pair.weight;
    numbers.weight_square_sum += pair.weight * pair.weight;
  }
}

}  // namespace tandem::trainer
