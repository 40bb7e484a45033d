#include "rollout_server/engine/stop_matcher.h"

#include <algorithm>
#include <utility>

#include "common/base/status_macros.h"
#include "rollout_server/engine/completion_text.h"

namespace tandem::rollout {

std::string_view WithoutUnfinishedCharacter(std::string_view text) {
  constexpr std::string_view kReplacement = "\xEF\xBF\xBD";
  while (text.ends_with(kReplacement)) text.remove_suffix(kReplacement.size());
  return text;
}

namespace {

std::optional<size_t> FirstOf(const std::vector<std::string>& stop_strings, std::string_view text) {
  std::optional<size_t> first;
  for (const std::string& stop : stop_strings) {
    const size_t at = text.find(stop);
    if (at != std::string_view::npos) first = std::min(first.value_or(at), at);
  }
  return first;
}

size_t LongestOf(const std::vector<std::string>& stop_strings) {
  size_t longest = 0;
  for (const std::string& stop : stop_strings) longest = std::max(longest, stop.size());
  return longest;
}

}  // namespace

StopMatcher::StopMatcher(const Tokenizer* tokenizer, std::vector<std::string> stop_strings)
    : tokenizer_(tokenizer),
      stop_strings_(std::move(stop_strings)),
      kept_bytes_(std::max<size_t>(LongestOf(stop_strings_), 1) - 1) {}

absl::StatusOr<std::optional<size_t>> StopMatcher::Check(std::span<const int32_t> token_ids) {
  TANDEM_ASSIGN_OR_RETURN(
      const std::string before,
      CompletionText(*tokenizer_, token_ids.subspan(context_, read_ - context_)));
  TANDEM_ASSIGN_OR_RETURN(const std::string now,
                          CompletionText(*tokenizer_, token_ids.subspan(context_)));
  const std::string_view complete = WithoutUnfinishedCharacter(now);
  std::string recent = tail_;
  if (complete.size() > before.size()) recent += complete.substr(before.size());
  if (FirstOf(stop_strings_, recent)) {
    TANDEM_ASSIGN_OR_RETURN(const std::string text, CompletionText(*tokenizer_, token_ids));
    return FirstOf(stop_strings_, WithoutUnfinishedCharacter(text));
  }
  if (complete.size() == now.size()) {
    tail_ = recent.substr(recent.size() - std::min(recent.size(), kept_bytes_));
    context_ = read_;
    read_ = token_ids.size();
  }
  return std::nullopt;
}

}  // namespace tandem::rollout
