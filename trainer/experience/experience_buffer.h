// ExperienceBuffer: which groups may be asked for, and which are fit to train on (stage 3). Pure:
// no clock, no thread, no socket.
//
// Train step k (from 0) consumes the P groups kP .. kP+P-1, each trained exactly once or dropped
// with a reason. A group may start while k <= installed steps + S - H: that is (S-H+1)*P slots, one
// taken when the group starts and freed when what it helped to make was published. Servers are held
// back by H versions (0 but in studies of staleness), so the weights that sample a group are at
// most S = max_staleness steps older than those it trains; TakeStep proves it.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "common/base/weight_version.h"
#include "proto/experience.pb.h"

namespace tandem::trainer {

// Weight versions between the oldest token of the group and `version`.
int64_t Staleness(const experience::v1::ScoredGroup& group, WeightVersion version);

inline constexpr char kZeroVariance[] = "zero_variance";

struct DroppedGroup {
  int64_t group_id = 0;
  std::string reason;   // "stale", kZeroVariance, "all_masked", or the caller's
  std::string message;  // what else the caller said
  // The group that was sampled and scored; kept for the buffer's own three reasons.
  std::optional<experience::v1::ScoredGroup> group = {};
};

struct StepExperience {
  std::vector<experience::v1::ScoredGroup> groups;  // in group_id order; empty: nothing to train
  std::vector<DroppedGroup> dropped;                // likewise

  // A step without a group to train where groups of equal rewards were dropped: its gradient is
  // zero, and nothing went wrong.
  bool OnlyEqualRewards() const;
};

// All groups of the step that were sampled and scored, trained or not. Rewards and lengths are
// measured over them, because a choice by reward or length would bias them. Views of `step`.
using GroupViews = std::vector<std::reference_wrapper<const experience::v1::ScoredGroup>>;
GroupViews SampledGroups(const StepExperience& step);

// Thread-compatible.
class ExperienceBuffer {
 public:
  // Starts at step `first_step`: everything before it was trained (the trained frontier).
  // hold_back <= max_staleness.
  ExperienceBuffer(int64_t max_staleness, int64_t groups_per_step, int64_t num_completions,
                   int64_t first_step, int64_t hold_back = 0);

  // The next group to ask for, taking its slot; none while all slots are taken.
  std::optional<int64_t> TakeSlot();

  // Takes a finished, scored group.
  //   ALREADY_EXISTS       this id came before, or was dropped or trained
  //   INVALID_ARGUMENT     it has not `num_completions` members: incomplete
  //   FAILED_PRECONDITION  its slot was not taken
  absl::Status Add(experience::v1::ScoredGroup group);

  // Gives a group up; the step it belongs to gets smaller. Errors as Add.
  absl::Status Drop(int64_t group_id, const std::string& reason, const std::string& message = "");

  // All groups of the current step are here or dropped.
  bool StepReady() const;

  // Hands the current step out; needs StepReady(). Drops groups older than the bound, groups of
  // equal rewards if asked, and groups with no member to train; they come along as dropped ones.
  StepExperience TakeStep(WeightVersion version, bool drop_zero_variance);

  // Servers run what the last taken step made (or it made nothing): its slots are free.
  void StepInstalled();

  // Groups that are here and not handed out.
  int64_t num_waiting() const { return static_cast<int64_t>(admitted_.size()); }

  int64_t next_step() const { return current_step_; }  // the trained frontier
  int64_t groups_per_step() const { return groups_per_step_; }

 private:
  absl::Status CheckOpen(int64_t group_id) const;

  const int64_t max_staleness_, hold_back_, groups_per_step_, num_completions_;
  int64_t current_step_;  // not taken yet
  int64_t installed_steps_;
  int64_t next_group_;  // no slot taken yet
  std::map<int64_t, experience::v1::ScoredGroup> admitted_;
  std::map<int64_t, DroppedGroup> dropped_;
};

}  // namespace tandem::trainer
