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

StopMatcher::StopMatcher(const Tokenizer* tokenizer, std::vector<std::string> stop_strings)
    : tokenizer_(tokenizer), stop_strings_(std::move(stop_strings)) {}

absl::StatusOr<std::optional<size_t>> StopMatcher::Check(std::span<const int32_t> token_ids) {
  TANDEM_ASSIGN_OR_RETURN(const std::string text,
                          CompletionText(*tokenizer_, token_ids));
  const std::string_view complete = WithoutUnfinishedCharacter(text);
  std::optional<size_t> first;
  for (const std::string& stop : stop_strings_) {
    const size_t at = complete.find(stop);
    if (at != std::string_view::npos) first = std::min(first.value_or(at), at);
  }
  return first;
}

}  // namespace tandem::rollout
