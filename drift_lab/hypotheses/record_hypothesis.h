// RecordHypothesis: what a server may have computed other than it claims, in a form that a healthy
// engine can replay. The right hypothesis leaves no difference between record and replay, because
// the engine repeats its results bit for bit (docs/rollouts.md, Numerics). Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "common/model/forward_arithmetic.h"
#include "drift_lab/hypotheses/part.h"
#include "rollout_server/engine/sampling/score_options.h"

namespace tandem::drift {

// The weights used in place of the claimed ones: theta + amount (theta' - theta), where theta' is
// of another version, in all tensors or in one.
struct OtherWeights {
  static constexpr int64_t kInitial = -1;
  // theta' is this many versions before the claimed one; kInitial: it is the model directory's.
  int64_t versions_before = 1;
  std::vector<std::string> tensors;  // sorted; empty: all
  double amount = 1;

  friend auto operator<=>(const OtherWeights&, const OtherWeights&) = default;
};

struct RecordHypothesis {
  double temperature = 1;  // factor of the claimed temperature
  int64_t top_k = 0;       // filters act where they are tighter than the claimed ones
  double top_p = 1, min_p = 0;
  rollout::SitePrecision precision;
  rollout::KvQuantisation kv_quantisation;
  std::string weight_formats;  // text of a plan (plan_text.h); empty: as the servers say
  std::optional<OtherWeights> weights;
  int32_t first_id = -1;  // replaces the first id of the prompts; -1: as claimed
  // The KV of prompts, except their last token, is of this many versions before; 0: off.
  int64_t stale_prefix = 0;
  std::vector<bool> stale_rows;  // [S] completions with such a prompt; empty: none

  // True if the parameter of `part` differs from the claim. Clear resets it.
  bool Has(Part part) const;
  void Clear(Part part);
  // Sets the parameter of `part` to its value in `other`.
  void Adopt(Part part, const RecordHypothesis& other);

  // The claims combined with the hypothesis, as far as ScoreOptions can express it.
  rollout::ScoreOptions Transforms(const rollout::ScoreOptions& claims) const;

  friend bool operator==(const RecordHypothesis&, const RecordHypothesis&) = default;
};

// The replay as it would have been recorded by completions whose log-probs are at the wrong tokens
// (record_shift.h), [T]; NaN at tokens whose record is then unknown. `shifts` is [S], `offsets` is
// [S + 1].
std::vector<float> ShiftRows(const std::vector<float>& replay, const std::vector<int>& shifts,
                             const std::vector<int64_t>& offsets);

}  // namespace tandem::drift
