#include "trainer/experience/group_check.h"

#include <algorithm>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/model/token_support.h"
#include "common/weights/digest.h"
#include "trainer/experience/drawn_tokens.h"

namespace tandem::trainer {
namespace {

using rollout::v1::Completion;
using rollout::v1::GenerateGroupRequest;

// A token drawn from a filtered distribution cannot be re-scored without its support.
bool NeedsSupport(const rollout::v1::SamplingParams& sampling) {
  const bool filtered = sampling.top_k() > 0 || (sampling.top_p() > 0 && sampling.top_p() < 1) ||
                        sampling.min_p() > 0;
  return sampling.return_support() && filtered && sampling.temperature() > 0;
}

int NumAsked(const GenerateGroupRequest& request) {
  return request.num_completions() + (request.greedy_baseline() ? 1 : 0);
}

absl::Status CheckLengths(const Completion& completion, bool needs_support,
                          const std::string& who) {
  const int length = completion.token_ids_size();
  const auto parallel = [&](const char* name, int size, bool required) {
    if (size == length || (size == 0 && !required)) return absl::OkStatus();
    return DataLoss(who, " has ", length, " token_ids and ", size, " ", name);
  };
  TANDEM_RETURN_IF_ERROR(
      parallel("behaviour_logprobs", completion.behaviour_logprobs_size(), true));
  TANDEM_RETURN_IF_ERROR(parallel("raw_logprobs", completion.raw_logprobs_size(), false));
  TANDEM_RETURN_IF_ERROR(parallel("entropies", completion.entropies_size(), false));
  TANDEM_RETURN_IF_ERROR(
      parallel("logprob_second_moments", completion.logprob_second_moments_size(), false));
  return parallel("support", completion.support_size(), needs_support);
}

absl::Status CheckPackedSupports(const Completion& completion, const std::string& who) {
  std::vector<int32_t> ids;
  for (const auto& support : completion.support()) {
    ids.clear();
    const absl::Status unpacked = UnpackSupport(support.packed(), kMostIds, &ids);
    if (!unpacked.ok()) return DataLoss(who, ": ", unpacked.message());
  }
  return absl::OkStatus();
}

absl::Status CheckSpans(const Completion& completion, int64_t min_version, const std::string& who) {
  int64_t covered = 0, newest = min_version;
  for (const auto& span : completion.version_spans()) {
    if (span.num_tokens() < 1) return DataLoss(who, " has an empty span");
    if (span.weight_version() < newest) {
      return DataLoss(who, " has tokens of weight version ", span.weight_version(),
                      " after version ", newest, " was asked for or seen");
    }
    newest = span.weight_version();
    covered += span.num_tokens();
  }
  if (covered == NumDrawn(completion)) return absl::OkStatus();
  return DataLoss(who, " has ", NumDrawn(completion), HasTurns(completion) ? " drawn" : "",
                  " tokens and version spans over ", covered);
}

// The most tokens that were asked for, of a completion and of a turn.
absl::Status CheckTurns(const GenerateGroupRequest& request, const Completion& completion,
                        const std::string& who) {
  const int length = completion.token_ids_size(), max_new = request.sampling().max_new_tokens();
  const int most = request.has_turns() ? request.turns().max_completion_tokens() : max_new;
  if (length < 1 || length > most) {
    return DataLoss(who, " has ", length, " tokens, want 1 to ", most);
  }
  if (!HasTurns(completion)) return absl::OkStatus();
  const absl::Status segments = CheckSegments(completion, who);
  if (!segments.ok()) return DataLoss(segments.message());
  const int64_t max_turns = request.has_turns() ? request.turns().max_turns() : 1;
  if (NumTurns(completion) > max_turns) {
    return DataLoss(who, " has ", NumTurns(completion), " turns, asked for were at most ",
                    max_turns);
  }
  for (const auto& segment : completion.segments()) {
    if (segment.given() || segment.num_tokens() <= max_new) continue;
    return DataLoss(who, " has a turn of ", segment.num_tokens(), " tokens, want 1 to ", max_new);
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckCompletion(const GenerateGroupRequest& request, const Completion& completion) {
  const std::string who =
      absl::StrCat("group ", request.group_id(), " completion ", completion.index());
  const bool is_baseline =
      request.greedy_baseline() &&
      completion.index() == request.first_completion() + request.num_completions();
  const int first = request.first_completion(), end = first + NumAsked(request);
  if (completion.index() < first || completion.index() >= end) {
    return DataLoss(who, ": want an index from ", first, " to ", end - 1);
  }
  if (is_baseline && !completion.greedy()) {
    return DataLoss(who, " is the greedy baseline, and was not sampled greedily");
  }
  TANDEM_RETURN_IF_ERROR(CheckTurns(request, completion, who));
  TANDEM_RETURN_IF_ERROR(
      CheckLengths(completion, !is_baseline && NeedsSupport(request.sampling()), who));
  TANDEM_RETURN_IF_ERROR(CheckPackedSupports(completion, who));
  TANDEM_RETURN_IF_ERROR(CheckSpans(completion, request.min_weight_version(), who));
  if (completion.finish_reason() == rollout::v1::FINISH_REASON_UNSPECIFIED) {
    return DataLoss(who, " has no finish reason");
  }
  const auto& ids = completion.token_ids();
  const uint64_t hash = HashTokenIds({ids.data(), static_cast<size_t>(ids.size())});
  if (hash != completion.token_hash()) {
    return DataLoss(who, ": token_ids hash to ", absl::Hex(hash), ", the server sent ",
                    absl::Hex(completion.token_hash()),
                    ": the ids were changed or made anew on the way");
  }
  return absl::OkStatus();
}

absl::Status CheckTurn(const GenerateGroupRequest& request, const rollout::v1::Turn& turn) {
  const std::string who = absl::StrCat("group ", request.group_id(), " completion ", turn.index(),
                                       " turn ", turn.turn());
  const int first = request.first_completion(), end = first + NumAsked(request);
  if (turn.index() < first || turn.index() >= end) {
    return DataLoss(who, ": want an index from ", first, " to ", end - 1);
  }
  if (turn.turn() < 1 || turn.turn() >= request.turns().max_turns()) {
    return DataLoss(who, ": want a turn before the last of ", request.turns().max_turns());
  }
  const int length = turn.token_ids_size();
  if (length < 1 || length > request.sampling().max_new_tokens()) {
    return DataLoss(who, " has ", length, " tokens, want 1 to ",
                    request.sampling().max_new_tokens());
  }
  const uint64_t hash =
      HashTokenIds({turn.token_ids().data(), static_cast<size_t>(turn.token_ids_size())});
  if (hash == turn.token_hash()) return absl::OkStatus();
  return DataLoss(who, ": token_ids hash to ", absl::Hex(hash), ", the server sent ",
                  absl::Hex(turn.token_hash()));
}

absl::Status CheckNoneNewer(const std::vector<Completion>& completions, int64_t newest) {
  for (const Completion& completion : completions) {
    for (const auto& span : completion.version_spans()) {
      if (span.weight_version() <= newest) continue;
      return DataLoss("completion ", completion.index(), " has tokens of weight version ",
                      span.weight_version(), ", and ", newest, " is the last that was published");
    }
  }
  return absl::OkStatus();
}

bool IsTruncated(const Completion& completion) {
  return completion.finish_reason() == rollout::v1::FINISH_REASON_LENGTH ||
         completion.finish_reason() == rollout::v1::FINISH_REASON_STOPPED_EARLY;
}

RewardInput MakeRewardInput(const experience::v1::Prompt& prompt, const Completion& completion) {
  RewardInput input = {.text = completion.text(),
                       .answer = prompt.answer(),
                       .prompt = prompt.text(),
                       .source_json = prompt.source_json(),
                       .num_tokens = completion.token_ids_size(),
                       .truncated = IsTruncated(completion),
                       .token_ids = {completion.token_ids().data(),
                                     static_cast<size_t>(completion.token_ids_size())}};
  if (HasTurns(completion)) input.last_turn = LastTurnText(completion);
  return input;
}

std::vector<RewardInput> MakeRewardInputs(const experience::v1::ScoredGroup& group) {
  std::vector<RewardInput> inputs;
  for (const experience::v1::ScoredCompletion& member : group.completions()) {
    inputs.push_back(MakeRewardInput(group.prompt(), member.completion()));
  }
  if (group.has_baseline()) {
    inputs.push_back(MakeRewardInput(group.prompt(), group.baseline().completion()));
  }
  return inputs;
}

bool HasTrainedCompletion(const experience::v1::ScoredGroup& group) {
  return std::ranges::any_of(group.completions(), [](const auto& c) { return !c.masked(); });
}

absl::Status CheckGroup(const GenerateGroupRequest& request, std::vector<Completion>* completions) {
  if (static_cast<int>(completions->size()) != NumAsked(request)) {
    return DataLoss("group ", request.group_id(), " is done with ", completions->size(), " of ",
                    NumAsked(request), " completions",
                    request.greedy_baseline()
                        ? "; a server that knows no greedy_baseline is of an earlier release"
                        : "");
  }
  std::ranges::sort(*completions, {}, &Completion::index);
  for (size_t i = 0; i < completions->size(); ++i) {
    const int index = request.first_completion() + static_cast<int>(i);
    if ((*completions)[i].index() != index) {
      return DataLoss("group ", request.group_id(), " has completion ", index, " not once");
    }
  }
  return absl::OkStatus();
}

}  // namespace tandem::trainer
