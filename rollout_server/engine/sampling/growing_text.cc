#include "rollout_server/engine/sampling/growing_text.h"

#include "common/base/status_macros.h"

namespace tandem::rollout {
namespace {

constexpr int kMostUnfinished = 3;  // bytes of an incomplete character
// Every token has a byte, so this many tokens without complete text will never become text.
constexpr size_t kMostPending = 12;

}  // namespace

std::string_view WithoutUnfinishedCharacter(std::string_view text) {
  constexpr std::string_view kReplacement = "\xEF\xBF\xBD";
  for (int i = 0; i < kMostUnfinished && text.ends_with(kReplacement); ++i) {
    text.remove_suffix(kReplacement.size());
  }
  return text;
}

absl::StatusOr<std::string> GrowingText::Next(std::span<const int32_t> token_ids) {
  TANDEM_ASSIGN_OR_RETURN(const std::string now, decode_(token_ids.subspan(context_)));
  const std::string_view complete = WithoutUnfinishedCharacter(now);
  std::string grown;
  if (complete.size() > num_returned_) {
    grown = complete.substr(num_returned_);
    num_returned_ = complete.size();
  }
  if (complete.size() == now.size() || token_ids.size() - read_ >= kMostPending) {
    TANDEM_ASSIGN_OR_RETURN(const std::string last, decode_(token_ids.subspan(read_)));
    num_returned_ = WithoutUnfinishedCharacter(last).size();
    context_ = read_;
    read_ = token_ids.size();
  }
  return grown;
}

}  // namespace tandem::rollout
