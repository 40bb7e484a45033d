// StepSplit: the drift of a train step's tokens in four parts (common/drift/additive_split.h),
// from scores that are gathered version by version before the step and joined with its proximal
// log-probs after it. Pure. Used by DriftMonitor.
#pragma once

#include <cstdint>
#include <set>
#include <vector>

#include "common/drift/additive_split.h"
#include "proto/experience.pb.h"
#include "trainer/experience/group_capture.h"
#include "trainer/experience/group_logprobs.h"
#include "trainer/metrics/metrics_line.h"

namespace tandem::trainer {

// Scores of the step's tokens [T], completion after completion; NaN until taken.
class StepSplit {
 public:
  // `version`: of the trainer's weights before the step. `server_casts`: servers run another dtype
  // than the masters; else the cast changes nothing.
  StepSplit(const std::vector<experience::v1::ScoredGroup>& groups, int64_t version,
            bool server_casts);

  const std::set<int64_t>& versions() const { return versions_; }  // that drew a token
  // Places of the groups with a token that `version` drew.
  std::vector<size_t> GroupsOf(int64_t version) const;

  enum Scorer { kEngine, kCast, kMasters };
  // Takes what `scorer` made of the tokens that `version` drew; `logprobs[i]` is of the group at
  // `places[i]`.
  void Take(Scorer scorer, int64_t version, const std::vector<size_t>& places,
            const GroupLogprobs& logprobs);

  // Tokens of the trainer's own version need no scores under its masters: those are the proximal
  // ones.
  offpolicy::AdditiveSplit Join(const PerToken& proximal) const;

 private:
  const std::vector<experience::v1::ScoredGroup>& groups_;
  const int64_t version_;
  const bool server_casts_;
  std::vector<size_t> group_begin_;     // [G] first token
  std::vector<int64_t> token_version_;  // [T]
  std::set<int64_t> versions_;
  std::vector<float> engine_, cast_, masters_;
};

// drift/split/ of metrics.jsonl.
void AddSplit(const offpolicy::AdditiveSplit& split, MetricsLine* line);

}  // namespace tandem::trainer
