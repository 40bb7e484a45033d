// Questions about completions of which a test gives the texts alone.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "trainer/rewards/external/reward_question.h"

namespace tandem::trainer {

inline std::shared_ptr<const HeldGroup> HeldCompletions(const std::vector<std::string>& texts) {
  std::vector<RewardInput> inputs;
  for (const std::string& text : texts) {
    inputs.push_back({.text = text, .answer = "42", .prompt = "What?", .source_json = "{\"k\":3}"});
  }
  return std::make_shared<HeldGroup>(inputs);
}

inline std::vector<RewardQuestion> QuestionsAbout(const std::vector<std::string>& texts) {
  const auto group = HeldCompletions(texts);
  std::vector<RewardQuestion> questions;
  for (size_t i = 0; i < texts.size(); ++i) questions.push_back({.group = group, .index = i});
  return questions;
}

}  // namespace tandem::trainer
