#include "trainer/experience/experience_buffer.h"

#include <algorithm>
#include <utility>

#include "common/base/check.h"
#include "common/base/status_macros.h"
#include "trainer/experience/group_check.h"

namespace tandem::trainer {

int64_t Staleness(const experience::v1::ScoredGroup& group, WeightVersion version) {
  int64_t oldest = version.value;
  for (const auto& member : group.completions()) {
    for (const auto& span : member.completion().version_spans()) {
      oldest = std::min(oldest, span.weight_version());
    }
  }
  return version.value - oldest;
}

ExperienceBuffer::ExperienceBuffer(int64_t max_staleness, int64_t groups_per_step,
                                   int64_t num_completions, int64_t first_step, int64_t hold_back)
    : max_staleness_(max_staleness),
      hold_back_(hold_back),
      groups_per_step_(groups_per_step),
      num_completions_(num_completions),
      current_step_(first_step),
      installed_steps_(first_step),
      next_group_(first_step * groups_per_step) {}

std::optional<int64_t> ExperienceBuffer::TakeSlot() {
  const int64_t ahead = max_staleness_ - hold_back_ + 1;
  if (next_group_ >= (installed_steps_ + ahead) * groups_per_step_) return std::nullopt;
  return next_group_++;
}

absl::Status ExperienceBuffer::CheckOpen(int64_t group_id) const {
  if (group_id >= next_group_) {
    return FailedPrecondition("group ", group_id, " has no slot; the next one is ", next_group_);
  }
  if (group_id < current_step_ * groups_per_step_ || admitted_.contains(group_id) ||
      dropped_.contains(group_id)) {
    return AlreadyExists("group ", group_id, " came before: a group is trained once");
  }
  return absl::OkStatus();
}

absl::Status ExperienceBuffer::Add(experience::v1::ScoredGroup group) {
  TANDEM_RETURN_IF_ERROR(CheckOpen(group.group_id()));
  if (group.completions_size() != num_completions_) {
    return InvalidArgument("group ", group.group_id(), " is incomplete: ", group.completions_size(),
                           " of ", num_completions_, " completions");
  }
  const int64_t id = group.group_id();
  admitted_.emplace(id, std::move(group));
  return absl::OkStatus();
}

absl::Status ExperienceBuffer::Drop(int64_t group_id, const std::string& reason,
                                    const std::string& message) {
  TANDEM_RETURN_IF_ERROR(CheckOpen(group_id));
  dropped_.emplace(group_id, DroppedGroup{group_id, reason, message});
  return absl::OkStatus();
}

bool ExperienceBuffer::StepReady() const {
  const int64_t begin = current_step_ * groups_per_step_;
  const int64_t end = begin + groups_per_step_;
  const auto in_step = [&](const auto& map) {
    return std::distance(map.lower_bound(begin), map.lower_bound(end));
  };
  return in_step(admitted_) + in_step(dropped_) == groups_per_step_;
}

StepExperience ExperienceBuffer::TakeStep(WeightVersion version, bool drop_zero_variance) {
  TANDEM_CHECK(StepReady());
  StepExperience step;
  const int64_t begin = current_step_ * groups_per_step_;
  for (int64_t id = begin; id < begin + groups_per_step_; ++id) {
    if (auto dropped = dropped_.extract(id)) {
      step.dropped.push_back(std::move(dropped.mapped()));
      continue;
    }
    experience::v1::ScoredGroup group = std::move(admitted_.extract(id).mapped());
    const auto drop = [&](const char* reason) {
      step.dropped.push_back({id, reason, "", std::move(group)});
    };
    if (Staleness(group, version) > max_staleness_) {
      drop("stale");
    } else if (!HasTrainedCompletion(group)) {
      drop("all_masked");
    } else if (drop_zero_variance && group.zero_variance()) {
      drop(kZeroVariance);
    } else {
      step.groups.push_back(std::move(group));
    }
  }
  ++current_step_;
  return step;
}

void ExperienceBuffer::StepInstalled() {
  TANDEM_CHECK(installed_steps_ < current_step_);
  ++installed_steps_;
}

bool StepExperience::OnlyEqualRewards() const {
  return groups.empty() && std::ranges::any_of(dropped, [](const DroppedGroup& group) {
           return group.reason == kZeroVariance;
         });
}

GroupViews SampledGroups(const StepExperience& step) {
  GroupViews views(step.groups.begin(), step.groups.end());
  for (const DroppedGroup& dropped : step.dropped) {
    if (dropped.group.has_value()) views.emplace_back(*dropped.group);
  }
  std::ranges::sort(views, {}, [](const auto& view) { return view.get().group_id(); });
  return views;
}

}  // namespace tandem::trainer
