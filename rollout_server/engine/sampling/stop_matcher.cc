#include "rollout_server/engine/sampling/stop_matcher.h"

#include <algorithm>
#include <utility>

#include "common/base/status_macros.h"

namespace tandem::rollout {
namespace {

constexpr int kMostUnfinished = 3;  // bytes of an incomplete character
// Every token has a byte, so this many tokens without complete text will never become text.
constexpr size_t kMostPending = 12;
constexpr size_t kShort = 256;  // tokens: decoding all of them is cheap

size_t LongestOf(const std::vector<std::string>& stop_strings) {
  size_t longest = 0;
  for (const std::string& stop : stop_strings) longest = std::max(longest, stop.size());
  return longest;
}

}  // namespace

std::string_view WithoutUnfinishedCharacter(std::string_view text) {
  constexpr std::string_view kReplacement = "\xEF\xBF\xBD";
  for (int i = 0; i < kMostUnfinished && text.ends_with(kReplacement); ++i) {
    text.remove_suffix(kReplacement.size());
  }
  return text;
}

StopMatcher::StopMatcher(Decode decode, std::vector<std::string> stop_strings)
    : decode_(std::move(decode)),
      stop_strings_(std::move(stop_strings)),
      kept_bytes_(std::max<size_t>(LongestOf(stop_strings_), 1) - 1) {}

// Does a stop string end after the first `num_known_bytes`, which were checked before?
bool StopMatcher::EndsIn(std::string_view recent, size_t num_known_bytes) const {
  return std::any_of(stop_strings_.begin(), stop_strings_.end(), [&](const std::string& stop) {
    const size_t from = num_known_bytes < stop.size() ? 0 : num_known_bytes - stop.size() + 1;
    return recent.find(stop, from) != std::string_view::npos;
  });
}

absl::StatusOr<std::optional<size_t>> StopMatcher::Check(std::span<const int32_t> token_ids) {
  TANDEM_ASSIGN_OR_RETURN(const std::string before,
                          decode_(token_ids.subspan(context_, read_ - context_)));
  TANDEM_ASSIGN_OR_RETURN(const std::string now, decode_(token_ids.subspan(context_)));
  const size_t num_known = WithoutUnfinishedCharacter(before).size();
  const std::string_view complete = WithoutUnfinishedCharacter(now);
  std::string recent = tail_;
  if (complete.size() > num_known) recent += complete.substr(num_known);
  suspected_ = suspected_ || EndsIn(recent, tail_.size());
  if (complete.size() == now.size() || token_ids.size() - read_ >= kMostPending) {
    tail_ = recent.substr(recent.size() - std::min(recent.size(), kept_bytes_));
    context_ = read_;
    read_ = token_ids.size();
  }
  if (!suspected_ || (token_ids.size() > kShort && token_ids.size() < next_whole_)) {
    return std::nullopt;
  }
  TANDEM_ASSIGN_OR_RETURN(const std::string text, decode_(token_ids));
  suspected_ = false;
  next_whole_ = token_ids.size() + token_ids.size() / 4;
  return FirstIn(WithoutUnfinishedCharacter(text));
}

std::optional<size_t> StopMatcher::FirstIn(std::string_view text) const {
  std::optional<size_t> first;
  for (const std::string& stop : stop_strings_) {
    const size_t at = text.find(stop);
    if (at != std::string_view::npos) first = std::min(first.value_or(at), at);
  }
  return first;
}

}  // namespace tandem::rollout
