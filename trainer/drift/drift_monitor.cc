#include "trainer/drift/drift_monitor.h"

#include <algorithm>
#include <sstream>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/clock.h"
#include "common/base/exit_codes.h"
#include "common/base/json.h"
#include "common/base/status_macros.h"
#include "common/files/file_system.h"
#include "trainer/metrics/step_metrics.h"
#include "trainer/prompts/group_request.h"
#include "trainer/rollouts/call_end.h"

namespace tandem::trainer {

namespace {

using experience::v1::ScoredGroup;

Rounding RoundingOf(const RecentVersion& version) {
  return version.rounding == RoundingName(Rounding::kDither) ? Rounding::kDither
                                                             : Rounding::kNearest;
}

}  // namespace

void DriftMonitor::Connect(const std::string& run_id, RolloutClient* client,
                           const ServerScorer* scorer) {
  run_id_ = run_id;
  client_ = client;
  scorer_ = scorer;
}

void DriftMonitor::UseProbe(ProbeSet set) {
  series_ = std::make_unique<ProbeSeries>(set.CompletionOfTokens());
  probe_ = std::move(set);
}

absl::Status DriftMonitor::Open(const std::string& run_directory, bool resumes,
                                const ModelConfig& model) {
  if (options_.probe.every == 0) return absl::OkStatus();
  directory_ = run_directory + "/probe";
  TANDEM_RETURN_IF_ERROR(WithExitCode(MakeDirectories(directory_), ExitCode::kStorage));
  const std::string set_path = directory_ + "/set.jsonl";
  auto kept = ReadProbeSet(set_path);
  if (resumes && kept.status().code() != absl::StatusCode::kNotFound) {
    TANDEM_RETURN_IF_ERROR(WithExitCode(kept.status(), ExitCode::kBadModelOrData));
    UseProbe(*std::move(kept));
  } else if (!options_.probe.file.empty()) {
    auto given = ReadProbeSet(options_.probe.file);
    TANDEM_RETURN_IF_ERROR(WithExitCode(given.status(), ExitCode::kBadModelOrData));
    TANDEM_RETURN_IF_ERROR(WithExitCode(
        CheckProbeSet(*given, options_.probe.file, model.vocab_size, model.max_position_embeddings),
        ExitCode::kBadModelOrData));
    TANDEM_RETURN_IF_ERROR(WithExitCode(WriteProbeSet(set_path, *given), ExitCode::kStorage));
    UseProbe(*std::move(given));
  }
  const auto pushes = ReadFile(directory_ + "/pushes.jsonl");
  if (probe_.empty() || !pushes.ok()) return absl::OkStatus();
  std::istringstream lines(*pushes);
  for (std::string line; std::getline(lines, line);) {
    TANDEM_RETURN_IF_ERROR(WithExitCode(series_->RestorePush(line), ExitCode::kBadModelOrData));
  }
  return absl::OkStatus();
}

absl::Status DriftMonitor::ChooseProbe(const StepExperience& step) {
  ProbeSet set = ChooseProbeSet(step.groups, options_.probe.completions);
  if (set.empty()) return absl::OkStatus();
  TANDEM_RETURN_IF_ERROR(
      WithExitCode(WriteProbeSet(directory_ + "/set.jsonl", set), ExitCode::kStorage));
  TANDEM_RETURN_IF_ERROR(context_.event(
      "probe_chosen", absl::StrCat(set.num_completions(), " completions, digest ", set.digest),
      {{"digest", JsonText(set.digest)}}));
  UseProbe(std::move(set));
  return absl::OkStatus();
}

absl::Status DriftMonitor::MeasureProbe(WeightVersion version, const StepExperience& step,
                                        MetricsLine* line) {
  if (!options_.probe.Needed(version.value, options_.max_staleness)) return absl::OkStatus();
  if (probe_.empty()) TANDEM_RETURN_IF_ERROR(ChooseProbe(step));
  if (probe_.empty()) return absl::OkStatus();
  context_.show_phase("probe");
  const double start = MonotonicSeconds();
  TANDEM_ASSIGN_OR_RETURN(TrainerProbe scores, ScoreProbe(version));
  series_->AddTrainer(version.value, std::move(scores));
  TANDEM_RETURN_IF_ERROR(AskServersForProbe());
  TANDEM_RETURN_IF_ERROR(WritePushes(line->step()));
  series_->ForgetBefore(version.value - options_.max_staleness);
  if (options_.probe.Due(version.value)) series_->Report(version.value, line);
  line->Add("time/probe", MonotonicSeconds() - start);
  return absl::OkStatus();
}

absl::StatusOr<TrainerProbe> DriftMonitor::ScoreProbe(WeightVersion version) {
  const std::vector<ScoredGroup>& groups = probe_.groups;
  TrainerProbe scores = {.push_distance = push_distance_};
  TANDEM_ASSIGN_OR_RETURN(scores.distance, context_.learner->DistanceFromStart());
  TANDEM_ASSIGN_OR_RETURN(const GroupLogprobs masters, context_.learner->Score(groups, {}));
  scores.masters = scores.served = Flatten(groups, masters);
  if (server_dtype_ != DType::kBF16) return scores;
  TANDEM_ASSIGN_OR_RETURN(
      const GroupLogprobs served,
      context_.learner->Score(
          groups,
          {.as_bf16 = true, .rounding = RoundingOf(*context_.recent->Find(version.value))}));
  scores.served = Flatten(groups, served);
  return scores;
}

// A failed score says the same of its server as a failed group: a server that is gone or hangs gets
// no groups until it answers.
void DriftMonitor::DoubtUnlessFine(int server, const absl::Status& status) const {
  if (!ServerIsFine(status)) client_->Doubt(server, status.ToString());
}

absl::Status DriftMonitor::AskServersForProbe() {
  std::vector<ScoreTask> tasks;
  for (int server = 0; server < client_->num_servers(); ++server) {
    if (!client_->IsReady(server)) continue;
    tasks.push_back({.server = server});
    for (const ScoredGroup& group : probe_.groups) tasks.back().groups.push_back(&group);
  }
  rollout::v1::ScoreRequest how;
  how.set_run_id(run_id_);
  how.set_temperature(static_cast<float>(options_.sampling.temperature));
  how.set_as_served(true);
  const auto results = scorer_->ScoreEach(tasks, how);
  for (size_t i = 0; i < results.size(); ++i) {
    if (!results[i].ok()) {
      DoubtUnlessFine(tasks[i].server, results[i].status());
      TANDEM_RETURN_IF_ERROR(context_.event("probe_failed", results[i].status().ToString(), {}));
      continue;
    }
    series_->AddServer(results[i]->version, tasks[i].server,
                       Flatten(probe_.groups, results[i]->logprobs));
  }
  return absl::OkStatus();
}

absl::Status DriftMonitor::WritePushes(int64_t step) {
  const std::vector<std::string> lines = series_->TakePushLines(step);
  if (lines.empty()) return absl::OkStatus();
  auto file = AppendFile::Open(directory_ + "/pushes.jsonl");
  TANDEM_RETURN_IF_ERROR(WithExitCode(file.status(), ExitCode::kStorage));
  for (const std::string& line : lines) {
    TANDEM_RETURN_IF_ERROR(WithExitCode((*file)->Append(line + "\n"), ExitCode::kStorage));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::optional<StepSplit>> DriftMonitor::ScoreForSplit(WeightVersion version,
                                                                     const StepExperience& step,
                                                                     MetricsLine* line) {
  if (!options_.split.Due(line->step()) || step.groups.empty()) return std::nullopt;
  context_.show_phase("split");
  const double start = MonotonicSeconds();
  StepSplit split(step.groups, version.value, server_dtype_ == DType::kBF16);
  TANDEM_RETURN_IF_ERROR(ReplayOnServers(step, TakeReplays(step, &split), &split));
  for (const int64_t sampled_by : split.versions()) {
    TANDEM_RETURN_IF_ERROR(ScoreUnder(sampled_by, version, step, &split));
  }
  line->Add("time/split", MonotonicSeconds() - start);
  return split;
}

// The request for scores along the path and under the transforms that the tokens were sampled by.
rollout::v1::ScoreRequest DriftMonitor::RequestAsSampled() const {
  rollout::v1::ScoreRequest how;
  how.set_run_id(run_id_);
  how.set_temperature(static_cast<float>(options_.sampling.temperature));
  how.set_top_k(static_cast<int32_t>(options_.sampling.top_k));
  how.set_top_p(static_cast<float>(options_.sampling.top_p));
  how.set_min_p(static_cast<float>(options_.sampling.min_p));
  how.set_path(rollout::v1::SCORE_PATH_DECODE);
  return how;
}

// Whether a step that is split may train on the group. Where steps take any number of groups, that
// is one of those within the staleness bound.
bool DriftMonitor::MayBeSplit(const rollout::v1::GenerateGroupRequest& request,
                              const FinishedGroup& group) const {
  if (options_.steps_are_equal) {
    return options_.split.Due(request.group_id() / options_.prompts_per_step + 1 - skipped_steps_);
  }
  int64_t newest = 0;
  for (const rollout::v1::Completion& completion : group.completions) {
    for (const auto& span : completion.version_spans()) {
      newest = std::max(newest, span.weight_version());
    }
  }
  for (int64_t step = newest + 1; step <= newest + 1 + options_.max_staleness; ++step) {
    if (options_.split.Due(step)) return true;
  }
  return false;
}

std::optional<ScoredByServer> DriftMonitor::ReplayWhenSampled(
    const rollout::v1::GenerateGroupRequest& request, const FinishedGroup& group) const {
  // The step that will train on the group, unless a step before it is skipped until then; in that
  // case the replay is made at the step.
  const bool pushes_wait = options_.max_staleness == options_.hold_back_versions;
  if (pushes_wait || request.group_id() >= kFirstExtension || !MayBeSplit(request, group)) {
    return std::nullopt;
  }
  ScoredGroup sampled;
  *sampled.mutable_prompt()->mutable_token_ids() = request.prompt_token_ids();
  for (const rollout::v1::Completion& completion : group.completions) {
    *sampled.add_completions()->mutable_completion()->mutable_token_ids() = completion.token_ids();
  }
  auto replay = scorer_->ScoreEach({{group.server, {&sampled}}}, RequestAsSampled())[0];
  if (!replay.ok()) {
    DoubtUnlessFine(group.server, replay.status());
    return std::nullopt;
  }
  return *std::move(replay);
}

void DriftMonitor::KeepReplay(int64_t group_id, ScoredByServer replay) {
  replays_[group_id] = std::move(replay);
}

// Returns the places of the groups that have no replay.
std::vector<size_t> DriftMonitor::TakeReplays(const StepExperience& step, StepSplit* split) {
  std::vector<size_t> without;
  int64_t newest = 0;
  for (size_t g = 0; g < step.groups.size(); ++g) {
    newest = std::max(newest, step.groups[g].group_id());
    const auto replay = replays_.find(step.groups[g].group_id());
    // A group that got further completions was replayed in part.
    if (replay == replays_.end() ||
        std::ssize(replay->second.logprobs[0]) != step.groups[g].completions_size()) {
      without.push_back(g);
    } else {
      split->Take(StepSplit::kEngine, replay->second.version, {g}, replay->second.logprobs);
    }
  }
  std::erase_if(replays_, [&](const auto& replay) { return replay.first <= newest; });
  return without;
}

// Scores the groups at `places` by the server that sampled each, as far as it still runs those
// weights.
absl::Status DriftMonitor::ReplayOnServers(const StepExperience& step,
                                           const std::vector<size_t>& places, StepSplit* split) {
  std::vector<ScoreTask> tasks;
  std::vector<std::vector<size_t>> task_places;
  for (int server = 0; server < client_->num_servers(); ++server) {
    ScoreTask task = {.server = server};
    std::vector<size_t> server_places;
    for (const size_t g : places) {
      if (step.groups[g].server() != client_->address(server)) continue;
      task.groups.push_back(&step.groups[g]);
      server_places.push_back(g);
    }
    if (task.groups.empty() || !client_->IsReady(server)) continue;
    tasks.push_back(std::move(task));
    task_places.push_back(std::move(server_places));
  }
  const auto results = scorer_->ScoreEach(tasks, RequestAsSampled());
  for (size_t i = 0; i < results.size(); ++i) {
    if (results[i].ok()) {
      split->Take(StepSplit::kEngine, results[i]->version, task_places[i], results[i]->logprobs);
    } else {
      DoubtUnlessFine(tasks[i].server, results[i].status());
      TANDEM_RETURN_IF_ERROR(context_.event("split_failed", results[i].status().ToString(), {}));
    }
  }
  return absl::OkStatus();
}

// Scores the trainer's side under the masters of `sampled_by` and under their cast. The step itself
// scores the tokens under its own masters.
absl::Status DriftMonitor::ScoreUnder(int64_t sampled_by, WeightVersion version,
                                      const StepExperience& step, StepSplit* split) {
  const RecentVersion* const weights = context_.recent->Find(sampled_by);
  const bool now = sampled_by == version.value;
  if (weights == nullptr || (!now && !weights->masters.has_value())) return absl::OkStatus();
  const std::vector<size_t> places = split->GroupsOf(sampled_by);
  std::vector<ScoredGroup> groups;
  for (const size_t place : places) groups.push_back(step.groups[place]);
  ScoredWeights under = {.masters = now ? nullptr : &*weights->masters,
                         .rounding = RoundingOf(*weights)};
  if (!now) {
    TANDEM_ASSIGN_OR_RETURN(const GroupLogprobs masters, context_.learner->Score(groups, under));
    split->Take(StepSplit::kMasters, sampled_by, places, masters);
  }
  if (server_dtype_ != DType::kBF16) return absl::OkStatus();
  under.as_bf16 = true;
  TANDEM_ASSIGN_OR_RETURN(const GroupLogprobs cast, context_.learner->Score(groups, under));
  split->Take(StepSplit::kCast, sampled_by, places, cast);
  return absl::OkStatus();
}

void DriftMonitor::Report(WeightVersion version, const StepExperience& step,
                          const std::optional<StepSplit>& split, const PerToken& proximal,
                          MetricsLine* line) const {
  if (split.has_value()) AddSplit(split->Join(proximal), line);
  if (series_ == nullptr || !options_.probe.Due(version.value)) return;
  series_->ReportVisitation(version.value,
                            TokensByStaleness(step.groups, version, /*trained_only=*/true), line);
}

void BindOptions(OptionBinder& binder, ProbeOptions& options) {
  binder.Integer("every", &options.every, {.min = 0}, "versions",
                 "both sides score the probe set under such a weight version; 0: never");
  binder.Integer("completions", &options.completions, {.min = 8, .max = 4096}, "completions",
                 "of the set, taken from the run's first step; intervals need 8");
  binder.Text("file", &options.file,
              "JSON lines of prompt_token_ids and completion_token_ids, as another run's "
              "probe/set.jsonl; empty: the first completions of this run");
}

void BindOptions(OptionBinder& binder, SplitOptions& options) {
  binder.Integer("every", &options.every, {.min = 0}, "steps",
                 "split the step's drift into record, engine, cast and staleness: servers and "
                 "trainer score its tokens once more; 0: never");
}

}  // namespace tandem::trainer
