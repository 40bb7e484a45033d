// Episode: what became of one completion in the environment that played it. Filled by an
// environment (group_episodes.h), read by the rewards of the completion.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"

namespace tandem::trainer {

struct Episode {
  // Why it could not be played to its end; OK: it was.
  absl::Status failure;
  std::vector<double> turn_rewards;  // [turns], 0 for a turn without a reward
  bool is_per_turn = false;          // each belongs to its turn, and not to the completion
  std::vector<int32_t> turn_ends;    // [turns] token of the completion after the turn's last
  std::vector<std::pair<std::string, double>> info;  // numbers of the environment, by name
  // A JSON array of {"role", "content", ..}: the turns as assistant messages, and what the
  // environment answered.
  std::string messages_json;
  double seconds = 0;  // in the environment's own code
};

// The episodes of a group by the index of the completion, that of a baseline included.
using Episodes = std::map<int32_t, std::shared_ptr<const Episode>>;

}  // namespace tandem::trainer
