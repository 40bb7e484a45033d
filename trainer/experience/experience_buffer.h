// ExperienceBuffer: which groups may be asked for, and which are fit to train on (stage 3). Pure:
// no clock, no thread, no socket.
//
// A train step consumes groups in the order of their ids, each exactly once: trained, or dropped
// with a reason. Without `refill` that is the next P groups, whatever becomes of them. With it the
// step goes on until P of them are fit to train on, at most max_factor * P (dynamic sampling of
// DAPO, arXiv 2503.14476, section 3.2): where rewards are equal, another group is sampled in place
// of one that has no gradient. With `oversampling` more than P are under way from the start, and
// those before the last one that is needed which are not there yet are dropped as not needed.
//
// At step k (from 0) a group may start while fewer than (installed - k + S - H + 1) * P are open
// that were not dropped. Servers are held back by H versions (0 but in studies of staleness), so
// the weights that sample a group are at most S = max_staleness steps older than those it trains;
// TakeStep proves it. After a step that ended at max_factor with fewer than P groups, groups that
// were asked for ahead may miss the bound; they are dropped as stale.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "common/base/weight_version.h"
#include "common/options/options.h"
#include "proto/experience.pb.h"

namespace tandem::trainer {

// Section trainer.dynamic_sampling.
struct DynamicSamplingOptions {
  bool refill = false;
  double max_factor = 4;    // most groups of a step, over P
  double oversampling = 1;  // groups under way for a step, over P
};
void BindOptions(OptionBinder& binder, DynamicSamplingOptions& options);

// Whether every step takes P groups, whatever becomes of them.
inline bool HasEqualSteps(const DynamicSamplingOptions& options) {
  return !options.refill && options.oversampling == 1;
}

// Weight versions between the oldest token of the group and `version`.
int64_t Staleness(const experience::v1::ScoredGroup& group, WeightVersion version);

inline constexpr char kZeroVariance[] = "zero_variance";
inline constexpr char kAllMasked[] = "all_masked";
inline constexpr char kNotNeeded[] = "not_needed";

struct DroppedGroup {
  int64_t group_id = 0;
  std::string reason;   // "stale", kZeroVariance, kAllMasked, kNotNeeded, or the caller's
  std::string message;  // what else the caller said; kAllMasked: why the first completion is
  // The group that was sampled and scored; kept for the buffer's own reasons.
  std::optional<experience::v1::ScoredGroup> group = {};
  int64_t num_asked = 0;  // completions
};

struct StepExperience {
  std::vector<experience::v1::ScoredGroup> groups;  // in group_id order; empty: nothing to train
  std::vector<DroppedGroup> dropped;                // likewise

  int64_t num_consumed() const {
    return static_cast<int64_t>(groups.size()) + static_cast<int64_t>(dropped.size());
  }
  // A step without a group to train where groups of equal rewards were dropped: its gradient is
  // zero, and nothing went wrong.
  bool OnlyEqualRewards() const;
};

// All groups of the step that were sampled and scored, trained or not. Rewards and lengths are
// measured over them, because a choice by reward or length would bias them. Views of `step`.
using GroupViews = std::vector<std::reference_wrapper<const experience::v1::ScoredGroup>>;
GroupViews SampledGroups(const StepExperience& step);

struct BufferOptions {
  int64_t max_staleness = 0;        // S
  int64_t hold_back = 0;            // H <= S
  int64_t groups_per_step = 1;      // P
  bool drop_zero_variance = false;  // groups of equal rewards are not fit to train on
  DynamicSamplingOptions sampling;
};

// What was consumed before: the trained frontier.
struct Frontier {
  int64_t step = 0;   // the first that took no groups
  int64_t group = 0;  // the first that no step took
};

// Thread-compatible.
class ExperienceBuffer {
 public:
  ExperienceBuffer(const BufferOptions& options, const Frontier& start);

  // How many groups may be asked for now, by a trainer whose weights are `version`.
  int64_t FreeSlots(WeightVersion version) const;

  // Takes a slot for the next group, of which FreeSlots said that there is one.
  int64_t TakeSlot(int64_t num_completions);

  // The group will have so many completions, and is not there before.
  void Extend(int64_t group_id, int64_t num_completions);

  // Takes a finished, scored group.
  //   ALREADY_EXISTS       this id came before, or was dropped or trained
  //   INVALID_ARGUMENT     it has other than its number of completions: incomplete
  //   FAILED_PRECONDITION  its slot was not taken
  absl::Status Add(experience::v1::ScoredGroup group);

  // Gives a group up. Errors as Add.
  absl::Status Drop(int64_t group_id, const std::string& reason, const std::string& message = "");

  // Asked for, and neither there nor dropped.
  bool IsOpen(int64_t group_id) const;
  int64_t num_open() const;

  // The groups of the current step are here or dropped.
  bool StepReady(WeightVersion version) const;

  // Hands the current step out; needs StepReady(version). Drops groups older than the bound, groups
  // of equal rewards if asked, and groups with no member to train; they come along as dropped ones,
  // as do those that are not needed any more.
  StepExperience TakeStep(WeightVersion version);

  // Servers run what the last taken step made (or it made nothing): its slots are free.
  void StepInstalled();

  // Groups that are here and not handed out.
  int64_t num_waiting() const;

  const Frontier& frontier() const { return frontier_; }
  int64_t next_group() const { return frontier_.group + static_cast<int64_t>(entries_.size()); }

 private:
  // A group whose slot is taken: open until it is there or dropped.
  struct Entry {
    int64_t num_completions = 0;
    int64_t asked_at = 0;  // steps installed then
    std::optional<experience::v1::ScoredGroup> group;
    std::optional<DroppedGroup> dropped;

    bool is_open() const { return !group.has_value() && !dropped.has_value(); }
  };

  // The groups that the current step may take: `size` entries from the front.
  struct Window {
    int64_t size = 0;
    bool is_ready = false;
  };

  Window Scan(WeightVersion version) const;
  const char* WhyUnfit(const experience::v1::ScoredGroup& group, WeightVersion version) const;
  bool Counts(const Entry& entry, WeightVersion version) const;
  absl::Status CheckOpen(int64_t group_id) const;
  Entry& At(int64_t group_id) { return entries_[static_cast<size_t>(group_id - frontier_.group)]; }
  int64_t target() const;  // groups under way for a step
  int64_t limit() const;   // most groups of a step

  const BufferOptions options_;
  Frontier frontier_;
  int64_t installed_steps_;
  std::deque<Entry> entries_;  // of the groups from the frontier on
};

}  // namespace tandem::trainer
