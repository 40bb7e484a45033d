#include "trainer/rewards/model/scored_texts.h"

namespace tandem::trainer {

ScoredTexts::ScoredTexts(std::span<const LabelledSteps> texts, int64_t num_heads,
                         int64_t batch_tokens)
    : texts_(texts), num_heads_(num_heads) {
  size_t tokens = 0;  // of the example under way
  for (size_t i = 0; i < texts.size(); ++i) {
    const LabelledSteps& text = texts[i];
    const bool goes_on = i > 0 && text.prompt == texts[i - 1].prompt &&
                         tokens + text.completion.size() <= static_cast<size_t>(batch_tokens);
    if (!goes_on) {
      begins_.push_back(i);
      tokens = text.prompt.size();
    }
    tokens += text.completion.size();
  }
  begins_.push_back(texts.size());
}

std::span<const LabelledSteps> ScoredTexts::TextsOf(int64_t example) const {
  const size_t begin = begins_[static_cast<size_t>(example)];
  return texts_.subspan(begin, begins_[static_cast<size_t>(example) + 1] - begin);
}

GroupTokens ScoredTexts::Example(int64_t example) const {
  const std::span<const LabelledSteps> texts = TextsOf(example);
  GroupTokens tokens = {.prompt = texts[0].prompt};
  for (const LabelledSteps& text : texts) tokens.completions.emplace_back(text.completion);
  return tokens;
}

std::vector<ScorePlace> ScoredTexts::ScorePlaces(int64_t example) const {
  const std::span<const LabelledSteps> texts = TextsOf(example);
  std::vector<ScorePlace> places;
  for (size_t i = 0; i < texts.size(); ++i) {
    for (const int64_t end : texts[i].step_ends) places.push_back({i, end - 1});
  }
  return places;
}

}  // namespace tandem::trainer
