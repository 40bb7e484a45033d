#include "trainer/experience/experience_buffer.h"

#include <algorithm>
#include <cmath>
#include <string_view>
#include <utility>

#include "common/base/check.h"
#include "common/base/status_macros.h"
#include "trainer/experience/group_check.h"

namespace tandem::trainer {

using experience::v1::ScoredGroup;

void BindOptions(OptionBinder& binder, DynamicSamplingOptions& options) {
  binder.Flag("refill", &options.refill,
              "sample another group in the place of one that is dropped (equal rewards with "
              "advantage.drop_zero_variance, nothing to train, stale, failed), until a step has "
              "prompts_per_step of them");
  binder.Number("max_factor", &options.max_factor, {.min = 1, .max = 1024}, "x prompts_per_step",
                "most groups of a step with refill; it trains with what it has then");
  binder.Number("oversampling", &options.oversampling, {.min = 1, .max = 64}, "x prompts_per_step",
                "groups under way for a step, which ends its sampling when it has enough: slow "
                "groups are cancelled, so short completions are favoured; 1: off");
}

int64_t Staleness(const ScoredGroup& group, WeightVersion version) {
  int64_t oldest = version.value;
  for (const auto& member : group.completions()) {
    for (const auto& span : member.completion().version_spans()) {
      oldest = std::min(oldest, span.weight_version());
    }
  }
  return version.value - oldest;
}

ExperienceBuffer::ExperienceBuffer(const BufferOptions& options, const Frontier& start)
    : options_(options), frontier_(start), installed_steps_(start.step) {}

int64_t ExperienceBuffer::target() const {
  return static_cast<int64_t>(
      std::ceil(options_.sampling.oversampling * static_cast<double>(options_.groups_per_step)));
}

int64_t ExperienceBuffer::limit() const {
  if (!options_.sampling.refill) return target();
  const double most = options_.sampling.max_factor * static_cast<double>(options_.groups_per_step);
  return std::max(target(), static_cast<int64_t>(most));
}

const char* ExperienceBuffer::WhyUnfit(const ScoredGroup& group, WeightVersion version) const {
  if (Staleness(group, version) > options_.max_staleness) return "stale";
  if (!HasTrainedCompletion(group)) return kAllMasked;
  if (options_.drop_zero_variance && group.zero_variance()) return kZeroVariance;
  return nullptr;
}

// Whether the group is one of the P of its step.
bool ExperienceBuffer::Counts(const Entry& entry, WeightVersion version) const {
  if (entry.is_open()) return false;
  if (!options_.sampling.refill) return true;
  return entry.group.has_value() && WhyUnfit(*entry.group, version) == nullptr;
}

// Goes over the groups of the step until it has P that count, or as many as it may take.
ExperienceBuffer::Window ExperienceBuffer::Scan(WeightVersion version) const {
  Window window;
  int64_t counted = 0, open = 0;
  const auto is_complete = [&] { return counted + open == target() || window.size == limit(); };
  for (const Entry& entry : entries_) {
    if (is_complete()) break;
    ++window.size;
    open += entry.is_open();
    counted += Counts(entry, version);
    window.is_ready = counted == options_.groups_per_step;
    if (window.is_ready) return window;
  }
  window.is_ready = open == 0 && is_complete();
  return window;
}

int64_t ExperienceBuffer::FreeSlots(WeightVersion version) const {
  const int64_t steps =
      installed_steps_ + options_.max_staleness - options_.hold_back + 1 - frontier_.step;
  const auto undropped = std::ranges::count_if(
      entries_, [&](const Entry& entry) { return entry.is_open() || Counts(entry, version); });
  const int64_t asked = std::ssize(entries_);
  return std::max<int64_t>(0, std::min(steps * target() - undropped, steps * limit() - asked));
}

int64_t ExperienceBuffer::TakeSlot(int64_t num_completions) {
  entries_.push_back({.num_completions = num_completions, .asked_at = installed_steps_});
  return next_group() - 1;
}

absl::Status ExperienceBuffer::CheckOpen(int64_t group_id) const {
  if (group_id >= next_group()) {
    return FailedPrecondition("group ", group_id, " has no slot; the next one is ", next_group());
  }
  if (IsOpen(group_id)) return absl::OkStatus();
  return AlreadyExists("group ", group_id, " came before: a group is trained once");
}

bool ExperienceBuffer::IsOpen(int64_t group_id) const {
  return group_id >= frontier_.group && group_id < next_group() &&
         entries_[static_cast<size_t>(group_id - frontier_.group)].is_open();
}

int64_t ExperienceBuffer::num_open() const {
  return std::ranges::count_if(entries_, &Entry::is_open);
}

int64_t ExperienceBuffer::num_waiting() const {
  return std::ranges::count_if(entries_, [](const Entry& e) { return e.group.has_value(); });
}

void ExperienceBuffer::Extend(int64_t group_id, int64_t num_completions) {
  TANDEM_CHECK(IsOpen(group_id));
  At(group_id).num_completions = num_completions;
}

absl::Status ExperienceBuffer::Add(ScoredGroup group) {
  const int64_t id = group.group_id();
  TANDEM_RETURN_IF_ERROR(CheckOpen(id));
  Entry& entry = At(id);
  if (group.completions_size() != entry.num_completions) {
    return InvalidArgument("group ", id, " is incomplete: ", group.completions_size(), " of ",
                           entry.num_completions, " completions");
  }
  entry.group = std::move(group);
  return absl::OkStatus();
}

absl::Status ExperienceBuffer::Drop(int64_t group_id, const std::string& reason,
                                    const std::string& message) {
  TANDEM_RETURN_IF_ERROR(CheckOpen(group_id));
  Entry& entry = At(group_id);
  entry.dropped = DroppedGroup{group_id, reason, message, std::nullopt, entry.num_completions};
  return absl::OkStatus();
}

bool ExperienceBuffer::StepReady(WeightVersion version) const { return Scan(version).is_ready; }

StepExperience ExperienceBuffer::TakeStep(WeightVersion version) {
  const Window window = Scan(version);
  TANDEM_CHECK(window.is_ready);
  StepExperience step;
  const auto take = [&](bool needed) {
    const int64_t id = frontier_.group++;
    Entry entry = std::move(entries_.front());
    entries_.pop_front();
    const auto drop = [&](const char* reason, std::string message = "") {
      step.dropped.push_back(
          {id, reason, std::move(message), std::move(entry.group), entry.num_completions});
    };
    if (entry.dropped.has_value()) {
      step.dropped.push_back(*std::move(entry.dropped));
    } else if (!entry.group.has_value() || !needed) {
      drop(kNotNeeded);
    } else if (const char* const reason = WhyUnfit(*entry.group, version)) {
      drop(reason,
           std::string_view(reason) == kAllMasked ? entry.group->completions(0).drop_reason() : "");
    } else {
      step.groups.push_back(*std::move(entry.group));
    }
  };
  for (int64_t i = 0; i < window.size; ++i) take(/*needed=*/true);
  ++frontier_.step;
  // What oversampling left and the next step could not train within the bound any more.
  const int64_t slack = options_.max_staleness - options_.hold_back;
  while (!entries_.empty() && entries_.front().asked_at + slack < frontier_.step) {
    take(/*needed=*/false);
  }
  return step;
}

void ExperienceBuffer::StepInstalled() {
  TANDEM_CHECK(installed_steps_ < frontier_.step);
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
