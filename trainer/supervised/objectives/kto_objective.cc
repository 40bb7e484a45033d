#include "trainer/supervised/objectives/kto_objective.h"

#include <algorithm>
#include <numeric>

#include "common/base/check.h"

namespace tandem::trainer {
namespace {

double Total(std::span<const float> values) {
  return std::accumulate(values.begin(), values.end(), 0.0);
}

}  // namespace

std::vector<int64_t> MismatchedRows(int64_t count, int64_t run_length) {
  TANDEM_CHECK(run_length >= 2);
  std::vector<int64_t> rows;
  for (int64_t begin = 0; begin < count; begin += run_length) {
    const int64_t length = std::min(run_length, count - begin);
    if (length == 1) {
      rows.push_back(std::max<int64_t>(0, begin - 1));
      break;
    }
    for (int64_t i = 0; i < length; ++i) rows.push_back(begin + MismatchedCompletion(i, length));
  }
  return rows;
}

GroupTokens WithMismatched(const std::vector<LabelledCompletion>& examples,
                           const std::vector<int64_t>& mismatched, int64_t example) {
  const LabelledCompletion& own = examples[static_cast<size_t>(example)];
  const auto other = static_cast<size_t>(mismatched[static_cast<size_t>(example)]);
  return {.prompt = own.prompt, .completions = {own.completion, examples[other].completion}};
}

KtoObjective::KtoObjective(std::vector<LabelledCompletion> examples, int64_t run_length,
                           std::span<const float> reference_logprobs,
                           const PreferenceLossOptions& options)
    : examples_(std::move(examples)),
      mismatched_(MismatchedRows(static_cast<int64_t>(examples_.size()), run_length)),
      options_(options) {
  size_t begin = 0;
  const auto take = [&](size_t count) {
    const double sum = Total(reference_logprobs.subspan(begin, count));
    begin += count;
    return sum;
  };
  for (int64_t i = 0; i < num_examples(); ++i) {
    const GroupTokens tokens = WithMismatched(examples_, mismatched_, i);
    reference_.push_back(take(tokens.completions[0].size()));
    reference_mismatched_.push_back(take(tokens.completions[1].size()));
  }
  TANDEM_CHECK(begin == reference_logprobs.size());
}

GroupTokens KtoObjective::Example(int64_t example) const {
  const LabelledCompletion& own = examples_[static_cast<size_t>(example)];
  return {.prompt = own.prompt, .completions = {own.completion}};
}

std::optional<GroupTokens> KtoObjective::SequenceBefore(int64_t example) const {
  const GroupTokens both = WithMismatched(examples_, mismatched_, example);
  return GroupTokens{.prompt = both.prompt, .completions = {both.completions[1]}};
}

double KtoObjective::NumberBefore(int64_t example, const ExampleScores& scores) const {
  return Total(scores.logprobs[0]) - reference_mismatched_[static_cast<size_t>(example)];
}

void KtoObjective::BeginBatch(std::span<const int64_t> examples, double sum_before) {
  num_examples_of_batch_ = static_cast<double>(examples.size());
  reference_point_ = KtoReferencePoint(sum_before, static_cast<int64_t>(examples.size()));
}

std::vector<std::string> KtoObjective::MetricNames() const {
  return {"rewards/chosen", "rewards/rejected", "rewards/accuracies",
          "logps/chosen",   "logps/rejected",   "kl"};
}

double KtoObjective::Loss(int64_t example, const ExampleScores& scores, ExampleSlopes* slopes,
                          std::span<MetricSum> metrics) const {
  const auto i = static_cast<size_t>(example);
  const double logprob = Total(scores.logprobs[0]);
  const uint8_t desirable = examples_[i].desirable ? 1 : 0;
  const KtoLoss loss = ComputeKtoLoss({.logprobs = {&logprob, 1},
                                       .reference_logprobs = {&reference_[i], 1},
                                       .desirable = {&desirable, 1}},
                                      reference_point_, options_);
  const bool judged_good = loss.reward[0] > Beta(options_) * reference_point_;
  metrics[desirable != 0 ? 0 : 1].Add(loss.reward[0]);
  metrics[2].Add(judged_good == (desirable != 0) ? 1 : 0);
  metrics[desirable != 0 ? 3 : 4].Add(logprob);
  metrics[5].Add(reference_point_);
  if (slopes != nullptr) {
    std::ranges::fill(slopes->logprobs[0],
                      static_cast<float>(loss.slope[0] / num_examples_of_batch_));
  }
  return loss.value[0] / num_examples_of_batch_;
}

}  // namespace tandem::trainer
