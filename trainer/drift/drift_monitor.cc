// The drift a run measures beside that of its steps: the probe set and the additive split.
// Decisions are in probe_series and step_split; here are the calls they need.
#include <algorithm>
#include <cmath>
#include <limits>
#include <sstream>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/clock.h"
#include "common/base/exit_codes.h"
#include "common/base/log.h"
#include "common/base/status_macros.h"
#include "common/files/file_system.h"
#include "trainer/metrics/step_metrics.h"
#include "trainer/rollouts/call_end.h"
#include "trainer/trainer_impl.h"

namespace tandem::trainer {
namespace {

using experience::v1::ScoredGroup;

Rounding RoundingOf(const RecentVersion& version) {
  return version.rounding == RoundingName(Rounding::kDither) ? Rounding::kDither
                                                             : Rounding::kNearest;
}

}  // namespace

void Trainer::Impl::UseProbe(ProbeSet set) {
  drift.series = std::make_unique<ProbeSeries>(set.CompletionOfTokens());
  drift.probe = std::move(set);
}

// The set of a resumed run, or of a file; without either the first step chooses it.
absl::Status Trainer::Impl::OpenProbe(RunMode mode) {
  drift.push_distance = resumed ? std::numeric_limits<double>::quiet_NaN() : 0;
  if (options.probe.every == 0) return absl::OkStatus();
  const std::string folder = run->path() + "/probe";
  TANDEM_RETURN_IF_ERROR(WithExitCode(MakeDirectories(folder), ExitCode::kStorage));
  auto kept = ReadProbeSet(folder + "/set.jsonl");
  if (mode == RunMode::kResume && kept.status().code() != absl::StatusCode::kNotFound) {
    TANDEM_RETURN_IF_ERROR(WithExitCode(kept.status(), ExitCode::kBadModelOrData));
    UseProbe(*std::move(kept));
  } else if (!options.probe.file.empty()) {
    auto given = ReadProbeSet(options.probe.file);
    TANDEM_RETURN_IF_ERROR(WithExitCode(given.status(), ExitCode::kBadModelOrData));
    TANDEM_RETURN_IF_ERROR(
        WithExitCode(CheckProbeSet(*given, options.probe.file, model_config.vocab_size,
                                   model_config.max_position_embeddings),
                     ExitCode::kBadModelOrData));
    TANDEM_RETURN_IF_ERROR(
        WithExitCode(WriteProbeSet(folder + "/set.jsonl", *given), ExitCode::kStorage));
    UseProbe(*std::move(given));
  }
  const auto pushes = ReadFile(folder + "/pushes.jsonl");
  if (drift.probe.empty() || !pushes.ok()) return absl::OkStatus();
  std::istringstream lines(*pushes);
  for (std::string line; std::getline(lines, line);) {
    TANDEM_RETURN_IF_ERROR(
        WithExitCode(drift.series->RestorePush(line), ExitCode::kBadModelOrData));
  }
  return absl::OkStatus();
}

absl::Status Trainer::Impl::ChooseProbe(const StepExperience& step) {
  ProbeSet set = ChooseProbeSet(step.groups, options.probe.completions);
  if (set.empty()) return absl::OkStatus();
  TANDEM_RETURN_IF_ERROR(
      WithExitCode(WriteProbeSet(run->path() + "/probe/set.jsonl", set), ExitCode::kStorage));
  TANDEM_RETURN_IF_ERROR(Event(
      "probe_chosen", absl::StrCat(set.num_completions(), " completions, digest ", set.digest),
      {{"digest", JsonText(set.digest)}}));
  UseProbe(std::move(set));
  return absl::OkStatus();
}

// Both sides under the weights that the step starts from.
absl::Status Trainer::Impl::MeasureProbe(const StepExperience& step, MetricsLine* line) {
  if (!options.probe.Needed(version.value, options.max_staleness)) return absl::OkStatus();
  if (drift.probe.empty()) TANDEM_RETURN_IF_ERROR(ChooseProbe(step));
  if (drift.probe.empty()) return absl::OkStatus();
  ShowPhase("probe");
  const double start = MonotonicSeconds();
  TANDEM_ASSIGN_OR_RETURN(TrainerProbe scores, ScoreProbe());
  drift.series->AddTrainer(version.value, std::move(scores));
  TANDEM_RETURN_IF_ERROR(AskServersForProbe());
  TANDEM_RETURN_IF_ERROR(WritePushes(line->step()));
  drift.series->ForgetBefore(version.value - options.max_staleness);
  if (options.probe.Due(version.value)) drift.series->Report(version.value, line);
  line->Add("time/probe", MonotonicSeconds() - start);
  return absl::OkStatus();
}

absl::StatusOr<TrainerProbe> Trainer::Impl::ScoreProbe() {
  const std::vector<ScoredGroup>& groups = drift.probe.groups;
  TrainerProbe scores = {.push_distance = drift.push_distance};
  TANDEM_ASSIGN_OR_RETURN(scores.distance, learner->DistanceFromStart());
  TANDEM_ASSIGN_OR_RETURN(const GroupLogprobs masters, learner->Score(groups, {}));
  scores.masters = scores.served = Flatten(groups, masters);
  if (server_dtype != DType::kBF16) return scores;
  TANDEM_ASSIGN_OR_RETURN(
      const GroupLogprobs served,
      learner->Score(groups,
                     {.as_bf16 = true, .rounding = RoundingOf(*recent->Find(version.value))}));
  scores.served = Flatten(groups, served);
  return scores;
}

// A score that failed tells of its server what a group would: one that is gone or hangs gets no
// groups until it answers.
void Trainer::Impl::DoubtUnlessFine(int server, const absl::Status& status) const {
  if (!ServerIsFine(status)) client->Doubt(server, status.ToString());
}

// One that does not answer is an event, and the run goes on.
absl::Status Trainer::Impl::AskServersForProbe() {
  std::vector<ScoreTask> tasks;
  for (int server = 0; server < client->num_servers(); ++server) {
    if (!client->IsReady(server)) continue;
    tasks.push_back({.server = server});
    for (const ScoredGroup& group : drift.probe.groups) tasks.back().groups.push_back(&group);
  }
  rollout::v1::ScoreRequest how;
  how.set_run_id(run_id);
  how.set_temperature(static_cast<float>(options.sampling.temperature));
  how.set_as_served(true);
  const auto results = drift.scorer->ScoreEach(tasks, how);
  for (size_t i = 0; i < results.size(); ++i) {
    if (!results[i].ok()) {
      DoubtUnlessFine(tasks[i].server, results[i].status());
      TANDEM_RETURN_IF_ERROR(Event("probe_failed", results[i].status().ToString()));
      continue;
    }
    drift.series->AddServer(results[i]->version, tasks[i].server,
                            Flatten(drift.probe.groups, results[i]->logprobs));
  }
  return absl::OkStatus();
}

absl::Status Trainer::Impl::WritePushes(int64_t step) {
  const std::vector<std::string> lines = drift.series->TakePushLines(step);
  if (lines.empty()) return absl::OkStatus();
  auto file = AppendFile::Open(run->path() + "/probe/pushes.jsonl");
  TANDEM_RETURN_IF_ERROR(WithExitCode(file.status(), ExitCode::kStorage));
  for (const std::string& line : lines) {
    TANDEM_RETURN_IF_ERROR(WithExitCode((*file)->Append(line + "\n"), ExitCode::kStorage));
  }
  return absl::OkStatus();
}

// Before the step: its weights and the servers' are still those of the tokens.
absl::StatusOr<std::optional<StepSplit>> Trainer::Impl::ScoreForSplit(const StepExperience& step,
                                                                      MetricsLine* line) {
  if (!options.split.Due(line->step()) || step.groups.empty()) return std::nullopt;
  ShowPhase("split");
  const double start = MonotonicSeconds();
  StepSplit split(step.groups, version.value, server_dtype == DType::kBF16);
  TANDEM_RETURN_IF_ERROR(ReplayOnServers(step, TakeReplays(step, &split), &split));
  for (const int64_t drawn_by : split.versions()) {
    TANDEM_RETURN_IF_ERROR(ScoreUnder(drawn_by, step, &split));
  }
  line->Add("time/split", MonotonicSeconds() - start);
  return split;
}

// The path and the transforms that the tokens were drawn by.
rollout::v1::ScoreRequest Trainer::Impl::AsDrawn() const {
  rollout::v1::ScoreRequest how;
  how.set_run_id(run_id);
  how.set_temperature(static_cast<float>(options.sampling.temperature));
  how.set_top_k(static_cast<int32_t>(options.sampling.top_k));
  how.set_top_p(static_cast<float>(options.sampling.top_p));
  how.set_min_p(static_cast<float>(options.sampling.min_p));
  how.set_path(rollout::v1::SCORE_PATH_DECODE);
  return how;
}

// Where pushes do not wait for groups, the weights that drew one may be gone by the step: it is
// replayed at once. On a thread of the client; one that fails is tried again at the step.
std::optional<ScoredByServer> Trainer::Impl::ReplayWhenDrawn(
    const rollout::v1::GenerateGroupRequest& request, const FinishedGroup& group) const {
  // The step that will train the group, unless one before it is skipped until then: the replay is
  // made at the step in that case.
  const int64_t step = request.group_id() / options.prompts_per_step + 1 - skipped_steps;
  const bool waits = options.max_staleness == options.push.hold_back_versions;
  if (waits || IsEvaluationGroup(request.group_id()) || !options.split.Due(step)) {
    return std::nullopt;
  }
  ScoredGroup drawn;
  *drawn.mutable_prompt()->mutable_token_ids() = request.prompt_token_ids();
  for (const rollout::v1::Completion& completion : group.completions) {
    *drawn.add_completions()->mutable_completion()->mutable_token_ids() = completion.token_ids();
  }
  auto replay = drift.scorer->ScoreEach({{group.server, {&drawn}}}, AsDrawn())[0];
  if (!replay.ok()) {
    DoubtUnlessFine(group.server, replay.status());
    return std::nullopt;
  }
  return *std::move(replay);
}

// Gives back the groups that have no replay.
std::vector<size_t> Trainer::Impl::TakeReplays(const StepExperience& step, StepSplit* split) {
  std::vector<size_t> without;
  int64_t newest = 0;
  for (size_t g = 0; g < step.groups.size(); ++g) {
    newest = std::max(newest, step.groups[g].group_id());
    const auto replay = drift.replays.find(step.groups[g].group_id());
    if (replay == drift.replays.end()) {
      without.push_back(g);
    } else {
      split->Take(StepSplit::kEngine, replay->second.version, {g}, replay->second.logprobs);
    }
  }
  std::erase_if(drift.replays, [&](const auto& replay) { return replay.first <= newest; });
  return without;
}

// Each of `which` by the server that drew it, as far as that still runs those weights.
absl::Status Trainer::Impl::ReplayOnServers(const StepExperience& step,
                                            const std::vector<size_t>& which, StepSplit* split) {
  std::vector<ScoreTask> tasks;
  std::vector<std::vector<size_t>> places;
  for (int server = 0; server < client->num_servers(); ++server) {
    ScoreTask task = {.server = server};
    std::vector<size_t> of_task;
    for (const size_t g : which) {
      if (step.groups[g].server() != client->address(server)) continue;
      task.groups.push_back(&step.groups[g]);
      of_task.push_back(g);
    }
    if (task.groups.empty() || !client->IsReady(server)) continue;
    tasks.push_back(std::move(task));
    places.push_back(std::move(of_task));
  }
  const auto results = drift.scorer->ScoreEach(tasks, AsDrawn());
  for (size_t i = 0; i < results.size(); ++i) {
    if (results[i].ok()) {
      split->Take(StepSplit::kEngine, results[i]->version, places[i], results[i]->logprobs);
    } else {
      DoubtUnlessFine(tasks[i].server, results[i].status());
      TANDEM_RETURN_IF_ERROR(Event("split_failed", results[i].status().ToString()));
    }
  }
  return absl::OkStatus();
}

// The trainer at the masters of `drawn_by`, and at their cast. The step itself scores its own
// masters.
absl::Status Trainer::Impl::ScoreUnder(int64_t drawn_by, const StepExperience& step,
                                       StepSplit* split) {
  const RecentVersion* const weights = recent->Find(drawn_by);
  const bool now = drawn_by == version.value;
  if (weights == nullptr || (!now && !weights->masters.has_value())) return absl::OkStatus();
  const std::vector<size_t> places = split->GroupsOf(drawn_by);
  std::vector<ScoredGroup> groups;
  for (const size_t place : places) groups.push_back(step.groups[place]);
  ScoredWeights under = {.masters = now ? nullptr : &*weights->masters,
                         .rounding = RoundingOf(*weights)};
  if (!now) {
    TANDEM_ASSIGN_OR_RETURN(const GroupLogprobs masters, learner->Score(groups, under));
    split->Take(StepSplit::kMasters, drawn_by, places, masters);
  }
  if (server_dtype != DType::kBF16) return absl::OkStatus();
  under.as_bf16 = true;
  TANDEM_ASSIGN_OR_RETURN(const GroupLogprobs cast, learner->Score(groups, under));
  split->Take(StepSplit::kCast, drawn_by, places, cast);
  return absl::OkStatus();
}

// After the step: its proximal log-probs are the last scores.
void Trainer::Impl::SplitDrift(const StepExperience& step, const std::optional<StepSplit>& split,
                               MetricsLine* line) {
  if (split.has_value()) AddSplit(split->Join(report.proximal_logprobs), line);
  if (drift.series == nullptr || !options.probe.Due(version.value)) return;
  drift.series->ReportVisitation(
      version.value, TokensByStaleness(step.groups, version, /*trained_only=*/true), line);
}

}  // namespace tandem::trainer
