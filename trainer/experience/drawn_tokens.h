// Which tokens of a completion the policy drew, and in which turn; the others were given to it
// between two turns (tools' results, users' messages) and are context: never trained, never scored.
// The one reader of Completion.segments (stages 3 to 4). Pure.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "proto/rollout.pb.h"

namespace tandem::trainer {

// Whether the completion is of several turns. All tokens of one that is not were drawn.
inline bool HasTurns(const rollout::v1::Completion& completion) {
  return !completion.segments().empty();
}

int64_t NumDrawn(const rollout::v1::Completion& completion);
int64_t NumTurns(const rollout::v1::Completion& completion);

// The text of the last turn, or of all where there are no turns, without the stop token. A view.
std::string_view LastTurnText(const rollout::v1::Completion& completion);

// [turns] the token after the last one of each turn.
std::vector<int32_t> TurnEnds(const rollout::v1::Completion& completion);

// [T] the turn that drew the token, from 1; 0: it was given.
std::vector<int32_t> TurnsOf(const rollout::v1::Completion& completion);

// [T] the weight version that drew the token; 0 where it was given.
std::vector<int64_t> VersionsOf(const rollout::v1::Completion& completion);

// The end of the last turn that begins before token `end`, or `end` where that token's predecessor
// was drawn: what ends with a tool's result is the turn's that it answers. `turns` as TurnsOf.
int64_t EndDrawn(const std::vector<int32_t>& turns, int64_t end);

// Segments that add up to the tokens, drawn and given ones by turns, drawn ones first and last; and
// version spans that add up to the drawn tokens. `who` begins the message.
//   INVALID_ARGUMENT  they are otherwise (with the numbers)
absl::Status CheckSegments(const rollout::v1::Completion& completion, const std::string& who);

}  // namespace tandem::trainer
