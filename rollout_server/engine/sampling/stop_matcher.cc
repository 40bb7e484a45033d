#include "rollout_server/engine/sampling/stop_matcher.h"

#include <algorithm>
#include <utility>

#include "common/base/status_macros.h"

namespace tandem::rollout {
namespace {

constexpr size_t kShort = 256;  // tokens: decoding all of them is cheap

size_t LongestOf(const std::vector<std::string>& stop_strings) {
  size_t longest = 0;
  for (const std::string& stop : stop_strings) longest = std::max(longest, stop.size());
  return longest;
}

}  // namespace

StopMatcher::StopMatcher(DecodeIds decode, std::vector<std::string> stop_strings)
    : decode_(std::move(decode)),
      stop_strings_(std::move(stop_strings)),
      kept_bytes_(std::max<size_t>(LongestOf(stop_strings_), 1) - 1),
      growing_(decode_) {}

// Does a stop string end after the first `num_known_bytes`, which were checked before?
bool StopMatcher::EndsIn(std::string_view recent, size_t num_known_bytes) const {
  return std::any_of(stop_strings_.begin(), stop_strings_.end(), [&](const std::string& stop) {
    const size_t from = num_known_bytes < stop.size() ? 0 : num_known_bytes - stop.size() + 1;
    return recent.find(stop, from) != std::string_view::npos;
  });
}

absl::StatusOr<std::optional<size_t>> StopMatcher::Check(std::span<const int32_t> token_ids) {
  TANDEM_ASSIGN_OR_RETURN(const std::string grown, growing_.Next(token_ids));
  const std::string recent = tail_ + grown;
  suspected_ = suspected_ || EndsIn(recent, tail_.size());
  tail_ = recent.substr(recent.size() - std::min(recent.size(), kept_bytes_));
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
