// TurnLimits, Segment, TurnAnswer: completions of several turns, as plain structs of the engine's
// requests and results (group.h). Between two turns a completion waits for ids that are given to it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace tandem::rollout {

// The limits that a request sets for a completion of several turns.
struct TurnLimits {
  int32_t max_turns = 1;              // sampled ones
  int32_t max_completion_tokens = 1;  // given ones included
};

// A run of tokens that were sampled in one turn, or given between two.
struct Segment {
  bool given = false;
  int32_t num_tokens = 0;
  std::string text;  // of a turn, without its stop token; empty where tokens were given
  friend bool operator==(const Segment&, const Segment&) = default;
};

// What follows a turn.
struct TurnAnswer {
  int32_t index = 0;               // of the completion
  int32_t turn = 0;                // FinishedTurn::turn
  std::vector<int32_t> token_ids;  // empty with `finish`
  bool finish = false;
};

}  // namespace tandem::rollout
