// Completions of several turns (stage 2): what is sampled in a turn ends, the completion waits, and
// goes on behind ids that were given to it. Used by the engine, which moves the sequence in the
// scheduler. A completion of one turn passes through CloseTurn alone, which then does nothing.
//
// While a completion waits, its turn is closed and is still the one that `turn_begin` says; the text
// and the finish reason in its completion are those of this turn.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "rollout_server/engine/schedule/group.h"
#include "rollout_server/engine/schedule/sequence.h"

namespace tandem::rollout {

//   INVALID_ARGUMENT  names the field, the value and the range
absl::Status ValidateTurns(const TurnLimits& turns);

// The turn under way has its last token: its segment ends.
void CloseTurn(Sequence& sequence);

// Whether the completion, whose turn is closed, waits to be continued: the turn ended by a stop
// token or a stop string, and there are turns and tokens left.
bool GoesOn(const Sequence& sequence);

// What the caller is told of a turn after which its completion waits.
FinishedTurn MakeFinishedTurn(const Sequence& sequence);

// Whether `answer` moves the completion on: false for one that repeats what was answered already.
//   NOT_FOUND            the completion has ended, and `answer` does not ask for that
//   FAILED_PRECONDITION  the completion is at another turn; the turn was answered otherwise
//   INVALID_ARGUMENT     ids with `finish`, or none without; one outside [0, vocab_size); too many
absl::StatusOr<bool> CheckAnswer(const Sequence& sequence, const TurnAnswer& answer,
                                 int64_t vocab_size);

// Appends the ids that follow the closed turn, and begins the next one. `now`: monotonic seconds.
void AppendGiven(Sequence& sequence, const std::vector<int32_t>& token_ids, double now);

// Takes those ids back from a completion that ends before the next turn has a token: it ends with
// the turn that they followed.
void DropGiven(Sequence& sequence);

}  // namespace tandem::rollout
