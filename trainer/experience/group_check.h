// CheckCompletion: what must hold of a completion that came over the wire (stages 2-3) before
// anything is computed from it. Pure. Used by rollout_client.cc.
#pragma once

#include <vector>

#include "absl/status/status.h"
#include "proto/experience.pb.h"
#include "proto/rollout.pb.h"
#include "trainer/rewards/rewards.h"

namespace tandem::trainer {

// DATA_LOSS, naming the group, the completion and the numbers, when:
//   it is empty, or it or one of its turns is longer than asked, or has more turns; its segments are
//   not drawn and given by turns; a per-token array is not as long as token_ids; version spans
//   do not add up, are empty, fall, or are older than asked; token_hash is not the hash of
//   token_ids (they were changed or made anew on the way); the index is out of range; no finish
//   reason is given.
absl::Status CheckCompletion(const rollout::v1::GenerateGroupRequest& request,
                             const rollout::v1::Completion& completion);

// DATA_LOSS, naming the group, the completion and the turn, when: no turns were asked for, the index
// or the number of the turn is out of range, it has no ids or too many, or another hash than its ids.
absl::Status CheckTurn(const rollout::v1::GenerateGroupRequest& request,
                       const rollout::v1::Turn& turn);

// Every index from first_completion on once, and the greedy baseline where the request asks for one.
// DATA_LOSS otherwise. Sorts by index: a baseline is the last.
absl::Status CheckGroup(const rollout::v1::GenerateGroupRequest& request,
                        std::vector<rollout::v1::Completion>* completions);

// DATA_LOSS when a token is labelled with a version that was never published: `newest` is the last.
absl::Status CheckNoneNewer(const std::vector<rollout::v1::Completion>& completions,
                            int64_t newest);

// The completion was cut before the model ended it: at max_new_tokens, or by a request.
bool IsTruncated(const rollout::v1::Completion& completion);

// What a completion is rewarded for. Views of the two messages: Completion.text as the server gave
// it, never text that was tokenised again or made otherwise.
RewardInput MakeRewardInput(const experience::v1::Prompt& prompt,
                            const rollout::v1::Completion& completion);
// The same for each completion of a group, in order, and last for its greedy baseline if it has one.
std::vector<RewardInput> MakeRewardInputs(const experience::v1::ScoredGroup& group);

// Whether a completion of the group is not masked.
bool HasTrainedCompletion(const experience::v1::ScoredGroup& group);

}  // namespace tandem::trainer
