#include "rollout_server/faults/faulty_records.h"

#include <algorithm>
#include <span>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "rollout_server/engine/sampling/completion_text.h"
#include "rollout_server/faults/faulty_sampling.h"

namespace tandem::rollout {
namespace {

void TurnByOne(std::vector<float>& values) {
  if (!values.empty()) std::rotate(values.begin(), values.end() - 1, values.end());
}

absl::Status Retokenise(const Tokenizer& tokenizer, FinishedCompletion& completion) {
  std::span<const int32_t> shown = completion.token_ids;
  const bool ended = completion.finish_reason == FinishReason::kStop;
  if (ended) shown = shown.first(shown.size() - 1);
  TANDEM_ASSIGN_OR_RETURN(const std::string text, CompletionText(tokenizer, shown));
  absl::StatusOr<std::vector<int32_t>> ids = tokenizer.Encode(text);
  if (!ids.ok()) return absl::InternalError(absl::StrCat("retokenise: ", ids.status().message()));
  if (ended) ids->push_back(completion.token_ids.back());
  completion.hashed_ids = std::exchange(completion.token_ids, *std::move(ids));
  return absl::OkStatus();
}

}  // namespace

absl::Status SpoilRecord(const EngineFaults& faults, uint64_t seed, const Tokenizer& tokenizer,
                         FinishedCompletion& completion) {
  const DrawPlace place = {seed, static_cast<uint32_t>(completion.index), 0};
  if (faults.shift_fraction > 0 && FaultDraw(place, FaultStream::kShift) < faults.shift_fraction) {
    TurnByOne(completion.behaviour_logprobs);
    TurnByOne(completion.raw_logprobs);
  }
  if (faults.synthetic_end && completion.finish_reason == FinishReason::kStop) {
    completion.behaviour_logprobs.back() = 0;
  }
  if (faults.retokenise) return Retokenise(tokenizer, completion);
  return absl::OkStatus();
}

}  // namespace tandem::rollout
