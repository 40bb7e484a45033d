#include "trainer/supervised/objectives/preference_objective.h"

#include <algorithm>

#include "common/base/check.h"

namespace tandem::trainer {
namespace {

int64_t ShorterLength(const PreferencePair& pair) {
  return static_cast<int64_t>(std::min(pair.chosen.size(), pair.rejected.size()));
}

std::vector<double> Doubles(std::span<const float> values) {
  return {values.begin(), values.end()};
}

double Sum(std::span<const float> values) {
  double sum = 0;
  for (const float value : values) sum += value;
  return sum;
}

// slope * TokenWeight, plus `more` for every token.
void WriteSlopes(double slope, double more, int64_t shorter, double ld_alpha,
                 std::span<float> slopes) {
  for (size_t t = 0; t < slopes.size(); ++t) {
    slopes[t] =
        static_cast<float>(slope * TokenWeight(static_cast<int64_t>(t), shorter, ld_alpha) + more);
  }
}

}  // namespace

GroupTokens TokensOf(const PreferencePair& pair) {
  return {.prompt = pair.prompt, .completions = {pair.chosen, pair.rejected}};
}

PreferenceObjective::PreferenceObjective(std::vector<PreferencePair> pairs,
                                         std::span<const float> reference_logprobs,
                                         const PreferenceLossOptions& options)
    : pairs_(std::move(pairs)), options_(options) {
  if (!NeedsReference(options.kind)) return;
  size_t begin = 0;
  const auto take = [&](size_t count, int64_t shorter) {
    const auto values = Doubles(reference_logprobs.subspan(begin, count));
    begin += count;
    return DesensitisedSum(values, shorter, options.ld_alpha);
  };
  for (const PreferencePair& pair : pairs_) {
    reference_chosen_.push_back(take(pair.chosen.size(), ShorterLength(pair)));
    reference_rejected_.push_back(take(pair.rejected.size(), ShorterLength(pair)));
  }
  TANDEM_CHECK(begin == reference_logprobs.size());
}

GroupTokens PreferenceObjective::Example(int64_t example) const {
  return TokensOf(pairs_[static_cast<size_t>(example)]);
}

int64_t PreferenceObjective::NllTokens(const PreferencePair& pair) const {
  const size_t of_prompt = reads_prompt() ? pair.prompt.size() - 1 : 0;
  return static_cast<int64_t>(pair.chosen.size() + of_prompt);
}

void PreferenceObjective::BeginBatch(std::span<const int64_t> examples, double /*sum_before*/) {
  num_pairs_ = static_cast<double>(examples.size());
  int64_t tokens = 0;
  for (const int64_t example : examples) tokens += NllTokens(pairs_[static_cast<size_t>(example)]);
  mean_nll_tokens_ = static_cast<double>(tokens) / num_pairs_;
}

std::vector<std::string> PreferenceObjective::MetricNames() const {
  return {"rewards/chosen",
          "rewards/rejected",
          "rewards/margins",
          "rewards/accuracies",
          "logps/chosen",
          "logps/rejected",
          "nll"};
}

double PreferenceObjective::Loss(int64_t example, const ExampleScores& scores,
                                 ExampleSlopes* slopes, std::span<MetricSum> metrics) const {
  const auto i = static_cast<size_t>(example);
  const PreferencePair& pair = pairs_[i];
  const int64_t shorter = ShorterLength(pair);
  const auto desensitised = [&](size_t completion) {
    return DesensitisedSum(Doubles(scores.logprobs[completion]), shorter, options_.ld_alpha);
  };
  const double chosen = desensitised(0), rejected = desensitised(1);
  const auto num_chosen = static_cast<int64_t>(pair.chosen.size());
  const auto num_rejected = static_cast<int64_t>(pair.rejected.size());
  const double prompt_nll = reads_prompt() ? -Sum(scores.prompt_logprobs) : 0;
  const double nll = prompt_nll - Sum(scores.logprobs[0]);
  const int64_t nll_tokens = NllTokens(pair);
  const double margin = pair.margin.value_or(0);
  PreferencePairs one = {.chosen_logprobs = {&chosen, 1},
                         .rejected_logprobs = {&rejected, 1},
                         .chosen_tokens = {&num_chosen, 1},
                         .rejected_tokens = {&num_rejected, 1},
                         .margins = {&margin, 1},
                         .chosen_nll = {&nll, 1},
                         .nll_tokens = {&nll_tokens, 1},
                         .batch_nll_tokens = mean_nll_tokens_};
  if (NeedsReference(options_.kind)) {
    one.reference_chosen_logprobs = {&reference_chosen_[i], 1};
    one.reference_rejected_logprobs = {&reference_rejected_[i], 1};
  }
  const PreferenceLoss loss = ComputePreferenceLoss(one, options_);
  const double numbers[] = {loss.chosen_reward[0],
                            loss.rejected_reward[0],
                            loss.chosen_reward[0] - loss.rejected_reward[0],
                            loss.chosen_reward[0] > loss.rejected_reward[0] ? 1.0 : 0.0,
                            Sum(scores.logprobs[0]),
                            Sum(scores.logprobs[1])};
  for (size_t m = 0; m < std::size(numbers); ++m) metrics[m].Add(numbers[m]);
  metrics[6].Add(nll / static_cast<double>(nll_tokens), static_cast<double>(nll_tokens));
  if (slopes != nullptr) {
    const double more = -loss.nll_slope[0] / num_pairs_;
    WriteSlopes(loss.chosen_slope[0] / num_pairs_, more, shorter, options_.ld_alpha,
                slopes->logprobs[0]);
    WriteSlopes(loss.rejected_slope[0] / num_pairs_, 0, shorter, options_.ld_alpha,
                slopes->logprobs[1]);
    if (reads_prompt()) {
      for (float& slope : slopes->prompt_logprobs) slope += static_cast<float>(more);
    }
  }
  return loss.value[0] / num_pairs_;
}

}  // namespace tandem::trainer
