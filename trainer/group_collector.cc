#include "trainer/group_collector.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <set>
#include <utility>

#include "common/base/clock.h"
#include "common/base/exit_codes.h"
#include "common/base/log.h"
#include "common/base/status_macros.h"
#include "trainer/advantages/group_advantages.h"
#include "trainer/advantages/step_tokens.h"
#include "trainer/experience/group_check.h"
#include "trainer/prompts/group_request.h"

namespace tandem::trainer {

using experience::v1::ScoredCompletion;
using experience::v1::ScoredGroup;

namespace {

constexpr std::chrono::milliseconds kWaitEach(200);

BufferOptions MakeBufferOptions(const TrainerOptions& options) {
  return {.max_staleness = options.max_staleness,
          .hold_back = options.push.hold_back_versions,
          .groups_per_step = options.prompts_per_step,
          .drop_zero_variance = DropsZeroVariance(options.advantage),
          .sampling = options.dynamic_sampling};
}

// Each completion's episode beside what it is rewarded for; none where nothing was played.
void GiveEpisodes(const ScoredGroup& group, const Episodes& episodes,
                  std::vector<RewardInput>* inputs) {
  if (episodes.empty()) return;
  for (int i = 0; i < group.completions_size(); ++i) {
    (*inputs)[static_cast<size_t>(i)].episode =
        episodes.at(group.completions(i).completion().index());
  }
  if (group.has_baseline()) {
    inputs->back().episode = episodes.at(group.baseline().completion().index());
  }
}

int64_t PartId(int64_t group_id, bool is_rest) {
  return is_rest ? kFirstExtension + group_id : group_id;
}

}  // namespace

GroupCollector::GroupCollector(const Context& context)
    : context_(context),
      options_(*context.options),
      buffer_(MakeBufferOptions(options_), context.state->frontier),
      counts_(std::ssize(context.inputs->prompts.train->prompts()), options_.curriculum.fading),
      next_batch_(context.state->frontier.step + 1) {
  counts_.Restore(context.state->prompt_counts);
}

bool GroupCollector::ReadsCounts() const {
  return options_.curriculum.kind == CurriculumKind::kWeighted ||
         options_.group_size.kind == GroupSizeKind::kAdaptive;
}

// Prompts and sizes for the next groups. What a checkpoint says was planned for an id stands: the
// same group is asked for again.
std::vector<PlannedGroup> GroupCollector::Plan(int64_t num_groups) const {
  const std::map<int64_t, PlannedGroup>& planned = context_.state->planned;
  PromptSource& prompts = *context_.inputs->prompts.train;
  std::vector<PlannedGroup> groups;
  int64_t id = buffer_.next_group();
  for (; std::ssize(groups) < num_groups && planned.contains(id); ++id) {
    groups.push_back(planned.at(id));
  }
  std::vector<PlannedGroup> more;
  const int64_t num_more = num_groups - std::ssize(groups);
  if (options_.curriculum.kind == CurriculumKind::kNone) {
    for (int64_t next = id; next < id + num_more; ++next) {
      const PromptSource::Place place = prompts.PlaceAt(next);
      more.push_back({.prompt = place.position, .epoch = place.epoch});
    }
  } else {
    std::set<int64_t> under_way;
    for (const auto& [other, plan] : planned) under_way.insert(plan.prompt);
    for (const int64_t prompt : context_.inputs->curriculum->Choose(
             id, num_more, context_.state->version.value, counts_, std::move(under_way))) {
      more.push_back({.prompt = prompt, .epoch = counts_.Of(prompt).groups});
    }
  }
  const std::vector<int64_t> sizes = Sizes(more);
  for (size_t i = 0; i < more.size(); ++i) {
    more[i].num_completions = sizes[i];
    groups.push_back(more[i]);
  }
  return groups;
}

std::vector<int64_t> GroupCollector::Sizes(const std::vector<PlannedGroup>& groups) const {
  const int64_t mean = options_.completions_per_prompt;
  if (options_.group_size.kind != GroupSizeKind::kAdaptive) {
    return std::vector<int64_t>(groups.size(), mean);
  }
  std::vector<double> deviations;
  for (const PlannedGroup& group : groups) {
    deviations.push_back(std::sqrt(counts_.ExpectedVariance(group.prompt)));
  }
  return AllocateCompletions(deviations, mean * std::ssize(groups), options_.group_size.min,
                             options_.group_size.max);
}

void GroupCollector::Ask() {
  AskForRest();
  AskForNew();
}

void GroupCollector::AskForNew() {
  // In a deterministic run a round is asked for when everything before it is settled, so that what
  // is in it, and what its groups are sampled beside, depends on no clock.
  if (options_.deterministic && buffer_.num_open() > 0) return;
  const int64_t free = buffer_.FreeSlots(context_.state->version);
  if (free == 0) return;
  const std::vector<PlannedGroup> round = Plan(free);
  for (size_t place = 0; place < round.size(); ++place) {
    const PlannedGroup& plan = round[place];
    const int64_t whole = plan.num_completions;
    const int64_t first = options_.group_size.kind == GroupSizeKind::kSequential
                              ? std::min(options_.group_size.min, whole)
                              : whole;
    const int64_t id = buffer_.TakeSlot(first);
    context_.state->planned[id] = plan;
    Send(id, 0, first, static_cast<int64_t>(place), std::ssize(round));
  }
  ++next_batch_;
}

void GroupCollector::AskForRest() {
  std::vector<int64_t> waiting;
  for (const auto& [id, group] : held_) {
    if (!asked_for_rest_.contains(id)) waiting.push_back(id);
  }
  if (waiting.empty()) return;
  const bool others_are_open = buffer_.num_open() > std::ssize(held_);
  if (options_.deterministic && others_are_open) return;
  for (size_t place = 0; place < waiting.size(); ++place) {
    const int64_t id = waiting[place], whole = context_.state->planned.at(id).num_completions;
    asked_for_rest_.insert(id);
    Send(id, options_.group_size.min, whole, static_cast<int64_t>(place), std::ssize(waiting));
  }
  ++next_batch_;
}

void GroupCollector::Send(int64_t id, int64_t first, int64_t end, int64_t place, int64_t round) {
  const PlannedGroup& plan = context_.state->planned.at(id);
  RunSampling run = {
      .run_id = context_.state->run_id,
      .seed = options_.seed,
      .completions_per_prompt = end - first,
      .sampling = MakeSampling(options_.sampling),
      .greedy_baseline = first == 0 && options_.advantage.kind == AdvantageKind::kGreedyBaseline,
      .turns = TurnsOf(options_)};
  // The support of every token, so that the policy can replay filters.
  run.sampling.set_return_support(true);
  run.sampling.set_packed_support(true);
  const experience::v1::Prompt& prompt =
      context_.inputs->prompts.train->Row(plan.prompt, plan.epoch);
  rollout::v1::GenerateGroupRequest request = MakeGroupRequest(
      run, prompt, id,
      std::max<int64_t>(0, context_.publisher->version().value - options_.max_staleness));
  request.set_group_id(PartId(id, first > 0));
  request.set_first_completion(static_cast<int32_t>(first));
  int server = kAnyServer;
  if (options_.deterministic) {
    const int64_t servers = context_.client->num_servers();
    server = static_cast<int>(place % servers);
    request.mutable_admission_batch()->set_batch_id(next_batch_);
    request.mutable_admission_batch()->set_num_groups(
        static_cast<int32_t>((round - server + servers - 1) / servers));
  }
  context_.log->history().Asked(id, request.min_weight_version(), end);
  EnvironmentPool* const environments = context_.inputs->environments.get();
  context_.client->Submit(
      std::move(request), server, context_.log->step_span(),
      environments == nullptr ? nullptr : environments->PlayGroup(prompt, options_.seed));
}

absl::Status GroupCollector::Wait() {
  RewardQueue& rewards = *context_.rewards;
  const bool has_room = rewards.HasRoom();
  const bool for_rewards =
      !has_room || (rewards.num_open() > 0 && context_.client->queues().groups_in_flight == 0);
  const double start = MonotonicSeconds();
  std::optional<FinishedGroup> group;
  if (has_room) {
    TANDEM_ASSIGN_OR_RETURN(group, context_.client->Next(kWaitEach));
  } else {
    rewards.WaitFor(kWaitEach);
  }
  const double waited = MonotonicSeconds() - start;
  if (for_rewards)
    reward_seconds_ += waited;
  else
    context_.log->metrics().OnWait(waited);
  if (group.has_value()) TANDEM_RETURN_IF_ERROR(Take(*std::move(group)));
  for (const RewardEvent& event : rewards.TakeEvents()) {
    TANDEM_RETURN_IF_ERROR(context_.log->Event(event.kind, event.message));
  }
  if (context_.inputs->environments != nullptr) {
    for (const EnvironmentEvent& event : context_.inputs->environments->TakeEvents()) {
      TANDEM_RETURN_IF_ERROR(context_.log->Event(event.kind, event.message));
    }
  }
  return rewards.Deliver();
}

absl::Status GroupCollector::Drop(int64_t group_id, const std::string& reason,
                                  const std::string& message) {
  log::Warning("a group is given up",
               {{"group_id", group_id}, {"reason", reason}, {"message", message}});
  held_.erase(group_id);
  asked_for_rest_.erase(group_id);
  return buffer_.Drop(group_id, reason, message);
}

absl::Status GroupCollector::Take(FinishedGroup finished) {
  const bool is_rest = IsExtension(finished.group_id);
  const int64_t id = is_rest ? finished.group_id - kFirstExtension : finished.group_id;
  if (!buffer_.IsOpen(id)) return absl::OkStatus();  // not needed any more
  ++num_done_;
  if (finished.status.code() == absl::StatusCode::kInvalidArgument) {
    return WithExitCode(finished.status, ExitCode::kUsage);
  }
  const std::string message(finished.status.message());
  if (finished.status.code() == absl::StatusCode::kDataLoss) {
    return Drop(id, "bad_response", message);
  }
  if (!finished.status.ok()) return Drop(id, "failed", message);
  if (const absl::Status known =
          CheckNoneNewer(finished.completions, context_.publisher->version().value);
      !known.ok()) {
    return Drop(id, "bad_response", std::string(known.message()));
  }
  if (finished.replay && !is_rest) context_.drift->KeepReplay(id, *std::move(finished.replay));
  const Episodes episodes = std::move(finished.episodes);
  return Reward(Assemble(std::move(finished)), episodes);
}

// The group as a server sampled it; of a rest, behind the part that came before.
std::shared_ptr<ScoredGroup> GroupCollector::Assemble(FinishedGroup finished) {
  const auto group = std::make_shared<ScoredGroup>();  // shared with what is done later
  if (IsExtension(finished.group_id)) {
    const ScoredGroup& part = *held_.at(finished.group_id - kFirstExtension);
    group->set_group_id(part.group_id());
    group->set_server(part.server());
    for (const ScoredCompletion& member : part.completions()) {
      *group->add_completions()->mutable_completion() = member.completion();
    }
    if (part.has_baseline()) {
      *group->mutable_baseline()->mutable_completion() = part.baseline().completion();
    }
    held_.erase(part.group_id());
  } else {
    group->set_group_id(finished.group_id);
    group->set_server(context_.client->address(finished.server));
  }
  const PlannedGroup& plan = context_.state->planned.at(group->group_id());
  *group->mutable_prompt() = context_.inputs->prompts.train->Row(plan.prompt, plan.epoch);
  for (rollout::v1::Completion& completion : finished.completions) {
    *group->add_completions()->mutable_completion() = std::move(completion);
  }
  if (finished.baseline.has_value()) {
    *group->mutable_baseline()->mutable_completion() = *std::move(finished.baseline);
  }
  return group;
}

absl::Status GroupCollector::Reward(std::shared_ptr<ScoredGroup> group, const Episodes& episodes) {
  const double start = MonotonicSeconds();
  std::vector<RewardInput> inputs = MakeRewardInputs(*group);
  for (RewardInput& input : inputs) {
    input.step = context_.state->version.value;
    input.num_steps = options_.steps;
  }
  GiveEpisodes(*group, episodes, &inputs);
  TANDEM_RETURN_IF_ERROR(context_.rewards->Submit(
      inputs, [this, group](std::vector<trainer::Reward> rewards) -> absl::Status {
        TANDEM_ASSIGN_OR_RETURN(const auto steps,
                                FindStepTokens(*context_.inputs->tokenizer, rewards, *group));
        TANDEM_RETURN_IF_ERROR(ScoreGroup(rewards, steps, options_.advantage, group.get()));
        return Settle(group);
      }));
  reward_seconds_ += MonotonicSeconds() - start;
  return absl::OkStatus();
}

// A group that has its rewards is experience; or, where they differ, its other completions are
// asked for first.
absl::Status GroupCollector::Settle(std::shared_ptr<ScoredGroup> group) {
  const int64_t id = group->group_id();
  if (!buffer_.IsOpen(id)) return absl::OkStatus();  // not needed any more
  const int64_t whole = context_.state->planned.at(id).num_completions;
  if (group->completions_size() < whole && !group->zero_variance() &&
      HasTrainedCompletion(*group)) {
    buffer_.Extend(id, whole);
    held_[id] = std::move(group);
    return absl::OkStatus();
  }
  asked_for_rest_.erase(id);
  context_.log->history().Received(*group);
  return buffer_.Add(std::move(*group));
}

StepExperience GroupCollector::TakeStep() {
  num_done_ = 0;
  StepExperience step = buffer_.TakeStep(context_.state->version);
  CancelUnneeded(step);
  if (ReadsCounts()) CountSuccesses(step);
  return step;
}

void GroupCollector::CancelUnneeded(const StepExperience& step) {
  std::vector<int64_t> ids;
  for (const DroppedGroup& dropped : step.dropped) {
    if (dropped.reason != kNotNeeded || dropped.group.has_value()) continue;
    ids.push_back(PartId(dropped.group_id, false));
    ids.push_back(PartId(dropped.group_id, true));
    held_.erase(dropped.group_id);
    asked_for_rest_.erase(dropped.group_id);
  }
  if (!ids.empty()) context_.client->Cancel(ids);
}

// In the order of the ids, so that the counts do not depend on which group came first.
void GroupCollector::CountSuccesses(const StepExperience& step) {
  for (const ScoredGroup& group : SampledGroups(step)) {
    int64_t successes = 0, failures = 0;
    for (const ScoredCompletion& member : group.completions()) {
      if (IsRewardFailure(member.drop_reason())) continue;
      ++(member.correct() ? successes : failures);
    }
    counts_.Add(context_.state->planned.at(group.group_id()).prompt, successes, failures);
  }
}

void GroupCollector::Commit() {
  RunState& state = *context_.state;
  state.frontier = buffer_.frontier();
  state.planned.erase(state.planned.begin(), state.planned.lower_bound(state.frontier.group));
  if (ReadsCounts()) state.prompt_counts = counts_.Save();
}

double GroupCollector::TakeRewardSeconds() { return std::exchange(reward_seconds_, 0); }

}  // namespace tandem::trainer
