#include "trainer/rewards/model/model_reward.h"

#include <chrono>
#include <cmath>
#include <string>
#include <utility>

#include "common/base/status_macros.h"
#include "trainer/supervised/supervised_model.h"

namespace tandem::trainer {

RewardAnswer AnswerOf(const ModelReward& reward, std::span<const StepRange> ranges,
                      const RewardModelOptions& options) {
  if (!std::isfinite(reward.reward)) {
    return InvalidArgument("the reward model's score is not finite");
  }
  if (!options.each_step || reward.steps.empty()) return ExternalAnswer{.value = reward.reward};
  ExternalAnswer answer;
  for (size_t s = 0; s < reward.steps.size(); ++s) {
    answer.steps.push_back(
        {.end_byte = static_cast<int64_t>(ranges[s].end), .value = reward.steps[s]});
  }
  return answer;
}

absl::StatusOr<SplitText> SplitForScoring(const RewardScorer& scorer, std::string_view prompt,
                                          std::string_view completion, bool is_truncated) {
  SplitText split;
  split.text = {.prompt = std::string(prompt), .is_truncated = is_truncated};
  TANDEM_ASSIGN_OR_RETURN(split.ranges, scorer.Split(completion));
  for (const StepRange& range : split.ranges) {
    split.text.steps.emplace_back(completion.substr(range.begin, range.end - range.begin));
  }
  return split;
}

RewardModelAsker::RewardModelAsker(std::shared_ptr<RewardScorer> scorer, RewardTally* tally,
                                   EndSign* end)
    : scorer_(std::move(scorer)), tally_(tally), end_(end) {}

std::vector<RewardAnswer> RewardModelAsker::Ask(std::span<const RewardQuestion> questions) {
  if (scorer_->options().threads > 0 && !std::exchange(has_threads_, true)) {
    SupervisedModel::UseThreads(scorer_->options().threads);  // a setting of this thread
  }
  std::vector<RewardAnswer> answers;
  for (size_t begin = 0, end = 0; begin < questions.size(); begin = end) {
    while (end < questions.size() && questions[end].group == questions[begin].group) ++end;
    const std::span<const RewardQuestion> of_group = questions.subspan(begin, end - begin);
    if (end_->WaitFor(std::chrono::milliseconds(0))) {
      answers.insert(answers.end(), of_group.size(), Cancelled("the run ends"));
      continue;
    }
    for (RewardAnswer& answer : AskGroup(of_group)) answers.push_back(std::move(answer));
  }
  return answers;
}

std::vector<RewardAnswer> RewardModelAsker::AskGroup(std::span<const RewardQuestion> questions) {
  std::vector<RewardAnswer> answers(questions.size(), absl::UnknownError("not scored"));
  std::vector<size_t> scored;
  std::vector<TextToScore> texts;
  std::vector<std::vector<StepRange>> ranges;
  for (size_t i = 0; i < questions.size(); ++i) {
    const RewardInput& input = questions[i].input();
    auto split = SplitForScoring(*scorer_, input.prompt, input.text, input.truncated);
    if (!split.ok()) {
      answers[i] = split.status();
      continue;
    }
    scored.push_back(i);
    texts.push_back(std::move(split->text));
    ranges.push_back(std::move(split->ranges));
  }
  const auto rewards = scorer_->Score(texts);
  double disagreement = 0;
  int64_t count = 0;
  for (size_t t = 0; t < scored.size(); ++t) {
    if (!rewards[t].ok()) {
      answers[scored[t]] = rewards[t].status();
      continue;
    }
    answers[scored[t]] = AnswerOf(*rewards[t], ranges[t], scorer_->options());
    disagreement += rewards[t]->disagreement;
    ++count;
  }
  tally_->Update([&](RewardNumbers& numbers) {
    numbers.model_disagreement += disagreement;
    numbers.model_rewards += count;
  });
  return answers;
}

MakeModelAsker AskModel(std::shared_ptr<RewardScorer> scorer) {
  return [scorer = std::move(scorer)](RewardTally* tally, EndSign* end) {
    return std::make_unique<RewardModelAsker>(scorer, tally, end);
  };
}

}  // namespace tandem::trainer
