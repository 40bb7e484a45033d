// RecordHypothesis: what a server may have done behind its claims, in a form that an honest engine
// can replay. Pure. A hypothesis that is right leaves nothing of the difference between record and
// replay, because the engine repeats itself bit for bit (docs/numerics.md).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "common/model/forward_arithmetic.h"
#include "drift_lab/hypotheses/part.h"
#include "rollout_server/engine/sampling/score_options.h"

namespace tandem::drift {

// Weights computed with in place of the claimed: theta + amount (theta' - theta), theta' of another
// version, in all tensors or in one.
struct OtherWeights {
  static constexpr int64_t kInitial = -1;
  int64_t versions_before =
      1;  // theta' is of so many versions before the claimed one; kInitial: the first
  std::vector<std::string> tensors;  // sorted; empty: all
  double amount = 1;

  friend auto operator<=>(const OtherWeights&, const OtherWeights&) = default;
};

struct RecordHypothesis {
  double temperature = 1;  // times the claimed one
  int64_t top_k = 0;       // where tighter than claimed
  double top_p = 1, min_p = 0;
  rollout::SitePrecision precision;
  rollout::KvQuantisation kv_quantisation;
  std::optional<OtherWeights> weights;
  int32_t first_id = -1;  // computed in place of the prompts' first id; -1: as claimed
  int64_t stale_prefix =
      0;  // KV of prompts but their last token is of so many versions before; 0: off
  std::vector<bool> stale_rows;  // [S] completions with such a prompt; empty: none

  // Is the dial of `part` turned? Clear turns it back.
  bool Has(Part part) const;
  void Clear(Part part);
  // Turns it as it is in `other`.
  void Adopt(Part part, const RecordHypothesis& other);

  // Claims and hypothesis together, as far as options say them.
  rollout::ScoreOptions Transforms(const rollout::ScoreOptions& claims) const;

  friend bool operator==(const RecordHypothesis&, const RecordHypothesis&) = default;
};

// Of completions whose log-probs stand at the wrong tokens (record_shift.h): the replay as it would
// have been recorded, [T]; NaN at tokens that nothing is known about. `shifts` [S], `offsets` [S +
// 1].
std::vector<float> ShiftRows(const std::vector<float>& replay, const std::vector<int>& shifts,
                             const std::vector<int64_t>& offsets);

}  // namespace tandem::drift
