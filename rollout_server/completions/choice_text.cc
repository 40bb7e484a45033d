#include "rollout_server/completions/choice_text.h"

#include <algorithm>
#include <span>
#include <string_view>
#include <utility>

#include "common/base/status_macros.h"
#include "rollout_server/engine/sampling/completion.h"

namespace tandem::rollout {
namespace {

struct StopPlace {
  size_t at = std::string_view::npos;  // where the stop string begins; npos: there is none
  std::string_view stop;
};

// The stop string that begins first; of two at one place, the one that is listed first.
StopPlace FirstStop(const std::vector<std::string>& stop_strings, std::string_view text) {
  StopPlace first;
  for (const std::string& stop : stop_strings) {
    const size_t at = text.find(stop);
    if (at < first.at) first = {.at = at, .stop = stop};
  }
  return first;
}

// How many bytes at the end of `text` may be the beginning of a stop string.
size_t HeldBack(const std::vector<std::string>& stop_strings, std::string_view text) {
  size_t held = 0;
  for (const std::string& stop : stop_strings) {
    for (size_t size = std::min(stop.size() - 1, text.size()); size > held; --size) {
      if (text.ends_with(std::string_view(stop).substr(0, size))) held = size;
    }
  }
  return held;
}

}  // namespace

DecodeIds TextRules::decode() const {
  return [this](std::span<const int32_t> ids) {
    return CompletionText(*tokenizer, ids, skip_special_tokens);
  };
}

absl::StatusOr<std::string> TextOf(const TextRules& rules, const FinishedCompletion& completion) {
  std::span<const int32_t> ids = completion.token_ids;
  if (completion.finish_reason == FinishReason::kStop && !rules.include_stop) {
    ids = ids.first(ids.size() - 1);
  }
  TANDEM_ASSIGN_OR_RETURN(std::string text, rules.decode()(ids));
  if (completion.finish_reason != FinishReason::kStopString) return text;
  const StopPlace first = FirstStop(rules.stop_strings, text);
  if (first.at != std::string::npos) {
    text.resize(first.at + (rules.include_stop ? first.stop.size() : 0));
  }
  return text;
}

std::string StopStringOf(const TextRules& rules, const FinishedCompletion& completion) {
  if (completion.finish_reason != FinishReason::kStopString) return "";
  const std::string text = CompletionText(*rules.tokenizer, completion.token_ids).value_or("");
  return std::string(FirstStop(rules.stop_strings, text).stop);
}

absl::StatusOr<std::string> ChoiceText::Add(int32_t id) {
  if (!rules_->include_stop && rules_->stop_ids.Has(id)) return std::string();
  ids_.push_back(id);
  TANDEM_ASSIGN_OR_RETURN(const std::string grown, growing_.Next(ids_));
  text_ += grown;
  const size_t certain = Certain();
  if (certain <= given_) return std::string();
  const size_t from = std::exchange(given_, certain);
  return text_.substr(from, certain - from);
}

size_t ChoiceText::Certain() const {
  const size_t stop = FirstStop(rules_->stop_strings, text_).at;
  if (stop != std::string::npos) return stop;
  return text_.size() - HeldBack(rules_->stop_strings, text_);
}

absl::StatusOr<std::string> ChoiceText::Finish(const FinishedCompletion& completion) {
  TANDEM_ASSIGN_OR_RETURN(const std::string whole, TextOf(*rules_, completion));
  const std::string_view given = std::string_view(text_).substr(0, given_);
  if (!std::string_view(whole).starts_with(given)) return std::string();
  return whole.substr(given_);
}

}  // namespace tandem::rollout
