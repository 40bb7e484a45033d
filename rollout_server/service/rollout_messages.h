// Conversions between proto/rollout.proto and the server's plain structs (stages 1 and 2-3). A
// request's fields are checked here, before anything is started. Pure functions.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "rollout_server/engine/sampling/score_options.h"
#include "rollout_server/groups/group_call.h"
#include "rollout_server/groups/group_registry.h"

namespace tandem::rollout::v1 {
class Completion;
class ContinueCompletionRequest;
class GenerateGroupRequest;
class GroupDone;
class ScoreRequest;
class SequenceScore;
class Turn;
}  // namespace tandem::rollout::v1

namespace tandem::rollout {

//   INVALID_ARGUMENT  sampling or turns are missing or out of range; num_completions < 1; an empty
//                     prompt; turns with DELIVERY_GROUP;
//                     prompt_hash is not the prompt's; TOO_LARGE (common/rpc/refusal.h): the
//                     longest completion of the request would not fit into a message
absl::StatusOr<GroupSubmission> SubmissionFromWire(const v1::GenerateGroupRequest& request);

// `sampling`: of the request; gives the seed and whether sampling was greedy.
void CompletionToWire(const FinishedCompletion& completion, const SamplingParams& sampling,
                      v1::Completion* wire);

// Would the completion fit into a message?
//   RESOURCE_EXHAUSTED  TOO_LARGE (common/rpc/refusal.h)
absl::Status CheckMessage(const FinishedCompletion& completion, const SamplingParams& sampling);

void TurnToWire(const FinishedTurn& turn, v1::Turn* wire);

//   INVALID_ARGUMENT  token_hash is not that of token_ids
absl::StatusOr<TurnAnswer> AnswerFromWire(const v1::ContinueCompletionRequest& request);

void ReportToWire(const GroupReport& report, v1::GroupDone* wire);

struct ScoreQuestion {
  std::vector<ScoreSequence> sequences;
  ScoreOptions options;
};

//   INVALID_ARGUMENT  no sequences; ValidateScoreOptions; an unknown path; a sequence (named by its
//                     index) of fewer than 2 ids, over the context, with num_prompt_tokens outside
//                     its ids, with an id outside the vocabulary, or whose token_hash differs; more
//                     than kMaxScoreTokens in all
absl::StatusOr<ScoreQuestion> ScoreFromWire(const v1::ScoreRequest& request, int64_t vocab_size,
                                            int64_t max_context_tokens);

void ScoreToWire(const SequenceScore& score, v1::SequenceScore* wire);

}  // namespace tandem::rollout
