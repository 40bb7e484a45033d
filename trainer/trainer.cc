#include "trainer/trainer.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/clock.h"
#include "common/base/exit_codes.h"
#include "common/base/json.h"
#include "common/base/log.h"
#include "common/base/status_macros.h"
#include "common/process/memory.h"
#include "common/rendezvous/loopback.h"
#include "common/rpc/credentials.h"
#include "trainer/experience/group_check.h"
#include "trainer/experience/score_group.h"
#include "trainer/metrics/step_metrics.h"
#include "trainer/prompts/group_request.h"
#include "trainer/trainer_impl.h"

namespace tandem::trainer {

using experience::v1::ScoredGroup;

namespace {

// ", left out: 2 that failed, 1 over data.max_prompt_tokens"
std::string LeftOut(int64_t num_failed, int64_t num_too_long) {
  std::vector<std::string> counts;
  if (num_failed > 0) counts.push_back(absl::StrCat(num_failed, " that failed"));
  if (num_too_long > 0) {
    counts.push_back(absl::StrCat(num_too_long, " over data.max_prompt_tokens"));
  }
  return counts.empty() ? "" : absl::StrCat(", left out: ", absl::StrJoin(counts, ", "));
}

}  // namespace

// Stage 1: a request for every free slot.
absl::Status Trainer::Impl::AskForGroups() {
  const int64_t servers = client->num_servers(), groups = options.prompts_per_step;
  const RunSampling run_sampling = {.run_id = run_id,
                                    .seed = options.seed,
                                    .completions_per_prompt = options.completions_per_prompt,
                                    .options = options.sampling};
  while (const std::optional<int64_t> group_id = buffer->TakeSlot()) {
    rollout::v1::GenerateGroupRequest request =
        MakeGroupRequest(run_sampling, train_prompts->At(*group_id), *group_id,
                         std::max<int64_t>(0, publisher->version().value - options.max_staleness));
    int server = kAnyServer;
    if (options.deterministic) {
      const int64_t place = *group_id % groups;
      server = static_cast<int>(place % servers);
      request.mutable_admission_batch()->set_batch_id(*group_id / groups + 1);
      request.mutable_admission_batch()->set_num_groups(
          static_cast<int32_t>((groups - server + servers - 1) / servers));
    }
    history.Asked(*group_id, request.min_weight_version());
    client->Submit(std::move(request), server, spans.parent());
  }
  return absl::OkStatus();
}

// Stage 3: a finished group becomes experience, or is dropped with a reason.
absl::Status Trainer::Impl::TakeGroup(FinishedGroup finished) {
  ++groups_done;
  const auto drop = [&](const std::string& reason, const std::string& message) {
    log::Warning("a group is given up",
                 {{"group_id", finished.group_id}, {"reason", reason}, {"message", message}});
    return buffer->Drop(finished.group_id, reason, message);
  };
  if (finished.status.code() == absl::StatusCode::kInvalidArgument) {
    return WithExitCode(finished.status, ExitCode::kUsage);
  }
  if (finished.status.code() == absl::StatusCode::kDataLoss) {
    return drop("bad_response", std::string(finished.status.message()));
  }
  if (!finished.status.ok()) return drop("failed", std::string(finished.status.message()));
  if (const absl::Status known = CheckNoneNewer(finished.completions, publisher->version().value);
      !known.ok()) {
    return drop("bad_response", std::string(known.message()));
  }
  if (finished.replay) drift.replays[finished.group_id] = *std::move(finished.replay);
  ScoredGroup group;
  group.set_group_id(finished.group_id);
  group.set_server(client->address(finished.server));
  *group.mutable_prompt() = train_prompts->At(finished.group_id);
  for (rollout::v1::Completion& completion : finished.completions) {
    *group.add_completions()->mutable_completion() = std::move(completion);
  }
  const double start = MonotonicSeconds();
  ScoreGroup(*rewards, options.advantage, &group);
  times.reward += MonotonicSeconds() - start;
  history.Received(group);
  return buffer->Add(std::move(group));
}

absl::Status Trainer::Impl::Collect() {
  const double start = MonotonicSeconds();
  groups_done = 0;
  TANDEM_RETURN_IF_ERROR(AskForGroups());
  while (!buffer->StepReady() && !Stopping()) {
    roster->Update();
    TANDEM_RETURN_IF_ERROR(delivery->Sync());
    const double waits = MonotonicSeconds();
    TANDEM_ASSIGN_OR_RETURN(std::optional<FinishedGroup> group,
                            client->Next(std::chrono::milliseconds(200)));
    metrics->OnWait(MonotonicSeconds() - waits);
    ShowQueues();
    if (group.has_value()) TANDEM_RETURN_IF_ERROR(TakeGroup(*std::move(group)));
    ShowPhase("rollout", absl::StrCat(",\"groups_done\":", groups_done,
                                      ",\"groups\":", options.prompts_per_step));
  }
  times.rollout = MonotonicSeconds() - start - times.reward;
  return absl::OkStatus();
}

// Stages 4 to 8. False when the step made no new weights. One that has only groups of equal rewards
// has no gradient: it counts as a train step without an update, so that a start with rare rewards
// goes on, and its weights are published under the next version as they are.
absl::StatusOr<bool> Trainer::Impl::TrainOn(StepExperience* step, MetricsLine* line) {
  ShowPhase("train");
  AddGroupMetrics(*step, version, line);
  report = {};
  if (step->OnlyEqualRewards()) {
    AddAdvantageMetrics(step->groups, line);
    for (const char* const none : {"loss/num_tokens", "loss/num_updates"}) line->AddCount(none, 0);
    line->Add("time/update", 0);
    return true;
  }
  weights_known = false;
  TANDEM_ASSIGN_OR_RETURN(report, learner->Train(step->groups, version));
  weights_known = true;
  if (!report.skip_reason.empty()) return false;
  TakeTrainedAdvantages(report.advantages, &step->groups);
  AddAdvantageMetrics(step->groups, line);
  for (const auto& [name, value] : report.metrics) line->Add(name, value);
  for (const auto& [name, counts] : report.histograms) line->AddArray(name, counts);
  for (const auto& [name, json] : report.documents) line->AddDocument(name, json);
  return true;
}

// The weights of `version`, and what a later capture may need of them.
absl::Status Trainer::Impl::Publish(CastWeights cast, PushTotals* totals) {
  TANDEM_RETURN_IF_ERROR(recent->Remember(
      version, server_dtype == DType::kBF16 ? std::string(RoundingName(cast.rounding)) : "none",
      [this] { return learner->Keep(); }));
  TANDEM_ASSIGN_OR_RETURN(*totals, delivery->Publish(version, std::move(cast)));
  recent->NoteServed(publisher->version(), publisher->digests());
  return absl::OkStatus();
}

// Stage 9.
absl::Status Trainer::Impl::Push(MetricsLine* line) {
  ShowPhase("push");
  const double start = MonotonicSeconds();
  TANDEM_ASSIGN_OR_RETURN(CastWeights cast, learner->Cast(server_dtype));
  const CastNumbers numbers = cast.numbers;
  PushTotals totals;
  if (spans.phase != nullptr) publisher->SetTraceparent(spans.phase->traceparent());
  TANDEM_RETURN_IF_ERROR(Publish(std::move(cast), &totals));
  publisher->SetTraceparent("");
  buffer->StepInstalled();
  times.push = MonotonicSeconds() - start;
  drift.push_distance = numbers.update_norm;
  AddPushNumbers(publisher->version(), numbers, totals, line);
  return absl::OkStatus();
}

// One that cannot be written is an event, and the run goes on.
absl::Status Trainer::Impl::Capture(const StepExperience& step, MetricsLine* line) {
  const int64_t number = line->step();
  if (!captures->Due(number)) return absl::OkStatus();
  if (step.groups.empty()) return Event("capture_failed", "no group of the step was trained");
  ShowPhase("capture");
  const double start = MonotonicSeconds();
  const absl::Status written = captures->Write(
      DescribeCapture(number), step.groups, report.proximal_logprobs, report.advantages, *recent);
  line->Add("time/capture", MonotonicSeconds() - start);
  if (written.ok()) return Event("capture_written", absl::StrCat("captures/step_", number));
  log::Error("a capture could not be written", {{"reason", written.ToString()}});
  return Event("capture_failed", written.ToString());
}

// One train step: stages 1 to 3, proof of delivery, 4 to 8, 9, then what is kept of it.
absl::Status Trainer::Impl::Step() {
  times = {.checkpoint = times.checkpoint};
  const double start = MonotonicSeconds();
  spans.BeginStep(version.Next().value);
  TANDEM_RETURN_IF_ERROR(Collect());
  if (Stopping()) return absl::OkStatus();
  TANDEM_RETURN_IF_ERROR(delivery->Verify());
  StepExperience step = buffer->TakeStep(version, options.advantage.drop_zero_variance);
  metrics->OnTaken(step, version);
  for (const DroppedGroup& dropped : step.dropped) {
    TANDEM_RETURN_IF_ERROR(EventOfStep(
        "group_dropped", dropped.message.empty() ? dropped.reason : dropped.message,
        {{"group_id", absl::StrCat(dropped.group_id)}, {"reason", JsonText(dropped.reason)}}));
  }
  if (step.groups.empty() && !step.OnlyEqualRewards()) {
    return SkipStep("no group is left to train on", step);
  }
  MetricsLine line(version.Next().value, run->ElapsedSeconds());
  TANDEM_RETURN_IF_ERROR(MeasureProbe(step, &line));
  TANDEM_ASSIGN_OR_RETURN(const std::optional<StepSplit> split, ScoreForSplit(step, &line));
  TANDEM_ASSIGN_OR_RETURN(const bool trained, TrainOn(&step, &line));
  if (!trained) return SkipStep(report.skip_reason, step);
  history.Trained(version.Next(), step.groups);
  SplitDrift(step, split, &line);
  TANDEM_RETURN_IF_ERROR(Capture(step, &line));
  skipped_in_row = 0;
  version = version.Next();
  frontier = buffer->next_step();
  metrics->SetVersion(version);
  TANDEM_RETURN_IF_ERROR(Push(&line));
  TANDEM_RETURN_IF_ERROR(delivery->Verify());
  return RecordStep(step, MonotonicSeconds() - start, &line);
}

absl::Status Trainer::Impl::SkipStep(const std::string& reason, const StepExperience& step) {
  buffer->StepInstalled();
  frontier = buffer->next_step();
  skipped_steps = frontier - version.value;
  ++unrecorded_skips;
  for (const DroppedGroup& group : step.dropped) {
    unrecorded_drops.push_back({group.group_id, group.reason});
  }
  for (const ScoredGroup& group : step.groups) {
    unrecorded_drops.push_back({group.group_id(), "step_skipped"});
  }
  const auto id = [](std::string* out, const experience::v1::ScoredGroup& group) {
    absl::StrAppend(out, group.group_id());
  };
  TANDEM_RETURN_IF_ERROR(
      EventOfStep("step_skipped", reason,
                  {{"group_ids", absl::StrCat("[", absl::StrJoin(step.groups, ",", id), "]")}}));
  if (++skipped_in_row <= options.max_skipped_steps) return absl::OkStatus();
  return WithExitCode(absl::InternalError(absl::StrCat(skipped_in_row,
                                                       " train steps in a row made no weights "
                                                       "(trainer.max_skipped_steps): ",
                                                       reason)),
                      ExitCode::kTooManySkipped);
}

absl::Status Trainer::Impl::RecordStep(const StepExperience& step, double step_seconds,
                                       MetricsLine* line) {
  const bool eval_due =
      eval_prompts != nullptr && options.eval.every > 0 && version.value % options.eval.every == 0;
  const bool last = version.value >= options.steps;
  if (eval_due || (last && eval_prompts != nullptr && options.eval.at_end)) {
    TANDEM_RETURN_IF_ERROR(Evaluate(line));
  }
  std::vector<DroppedGroup> dropped = std::exchange(unrecorded_drops, {});
  dropped.insert(dropped.end(), step.dropped.begin(), step.dropped.end());
  AddDropMetrics(step.groups, dropped, line);
  line->AddCount("skipped/steps", std::exchange(unrecorded_skips, 0));
  line->Add("time/rollout", times.rollout);
  line->Add("time/reward", times.reward);
  line->Add("time/push", times.push);
  line->Add("time/checkpoint", times.checkpoint);
  line->Add("time/eval", times.eval);
  line->Add("time/step", step_seconds);
  line->AddCount("memory/peak_bytes", PeakMemoryBytes());
  const int64_t num_sampled = CountTokens(SampledGroups(step));
  line->Add("throughput/sampled_tokens_per_s",
            static_cast<double>(num_sampled) / std::max(1e-9, times.rollout));
  line->Add("throughput/trained_tokens_per_s",
            static_cast<double>(report.num_tokens) / std::max(1e-9, step_seconds));
  const auto token_text = [this](int32_t id) {
    return tokenizer->Decode(std::span(&id, 1), /*skip_special_tokens=*/false).value_or("");
  };
  TANDEM_RETURN_IF_ERROR(
      WithExitCode(run->WriteRollouts(version.value, step, report.proximal_logprobs, token_text),
                   ExitCode::kStorage));
  TANDEM_RETURN_IF_ERROR(WithExitCode(run->WriteMetrics(*line), ExitCode::kStorage));
  ShowMetrics(*line);
  ShowQueues();
  metrics->OnStep(*line, report.num_tokens, num_sampled);
  TANDEM_RETURN_IF_ERROR(RaiseAlerts(*line));
  // After the records: a resumed run deletes those newer than its checkpoint, and cannot make up
  // for missing ones.
  times.checkpoint = 0;
  const bool due = options.checkpoint.every > 0 && version.value % options.checkpoint.every == 0;
  return due ? SaveCheckpoint() : absl::OkStatus();
}

absl::Status Trainer::Impl::RaiseAlerts(const MetricsLine& line) {
  const TrainStepOptions& step = options.learner.step;
  const LossKind loss = {.bypass = step.correction.mode == offpolicy::CorrectionMode::kBypass,
                         .objective = step.loss.objective.kind};
  for (const Alert& alert : CheckAlerts(line, options.alerts, loss)) {
    metrics->OnAlert(alert.name);
    log::Warning("alert", {{"name", alert.name},
                           {"value", alert.measured.value},
                           {"threshold", alert.threshold},
                           {"diagnosis", alert.diagnosis}});
    JsonFields fields = {{"name", JsonText(alert.name)},
                         {"value", JsonNumber(alert.measured.value)},
                         {"threshold", JsonNumber(alert.threshold)},
                         {"diagnosis", JsonText(alert.diagnosis)}};
    if (alert.measured.known()) {
      fields.emplace_back("low", JsonNumber(alert.measured.low));
      fields.emplace_back("high", JsonNumber(alert.measured.high));
    }
    TANDEM_RETURN_IF_ERROR(Event("alert", Describe(alert), fields));
    stop_early |= alert.stops_run;
  }
  return absl::OkStatus();
}

absl::Status Trainer::Impl::Evaluate(MetricsLine* line) {
  ShowPhase("eval");
  const double start = MonotonicSeconds();
  const int64_t asked = options.eval.max_new_tokens;
  rollout::v1::SamplingParams sampling = MakeSampling(options.sampling);
  if (asked > 0) sampling.set_max_new_tokens(static_cast<int32_t>(asked));
  const EvaluationContext evaluation = {
      .run_id = run_id,
      .seed = static_cast<uint64_t>(options.seed),
      .step = version.value,
      .version = publisher->version().value,  // behind ours by push.hold_back_versions
      .sampling = std::move(sampling),
      .tick = [this] { return delivery->Sync(); },
      .other = [this](FinishedGroup group) { return TakeGroup(std::move(group)); }};
  const auto result = trainer::Evaluate(eval_prompts->prompts(), options.eval, evaluation, *client,
                                        *rewards, *context.stop);
  times.eval = MonotonicSeconds() - start;
  if (result.status().code() == absl::StatusCode::kCancelled) return absl::OkStatus();
  TANDEM_RETURN_IF_ERROR(result.status());
  if (!result->none_answered.ok()) TANDEM_RETURN_IF_ERROR(EvaluationFailed(result->none_answered));
  if (result->num_prompts == 0) return absl::OkStatus();
  line->AddCount("eval/weight_version", evaluation.version);
  line->Add("eval/greedy", result->greedy);
  line->Add("eval/greedy_share_correct", result->greedy_share_correct);
  line->AddCount("eval/num_prompts", result->num_prompts);
  line->AddCount("eval/num_failed", result->num_failed + result->num_failed_at_k);
  line->AddCount("eval/num_too_long", eval_prompts->num_dropped());
  if (result->k > 0) {
    line->Add("eval/pass_at_k", result->pass_at_k);
    line->AddCount("eval/k", result->k);
  }
  const double num_correct =
      std::round(result->greedy_share_correct * static_cast<double>(result->num_prompts));
  return Event("eval", absl::StrCat("greedy: ", num_correct, " of ", result->num_prompts,
                                    " held-out prompts correct",
                                    LeftOut(result->num_failed, eval_prompts->num_dropped())));
}

// Before the first step it ends the run: nothing is lost, and every later one would likely fail
// too, as would the first of a run that is started again. Later it is an event, and the run goes on
// without the numbers.
absl::Status Trainer::Impl::EvaluationFailed(const absl::Status& why) {
  if (version.value == 0) return WithExitCode(why, ExitCode::kBadModelOrData);
  log::Error("an evaluation failed", {{"reason", why.ToString()}});
  return Event("eval_failed", why.ToString());
}

absl::Status Trainer::Impl::EvaluateAtStart() {
  if (resumed || eval_prompts == nullptr || !options.eval.at_start || Stopping()) {
    return absl::OkStatus();
  }
  MetricsLine line(version.value, run->ElapsedSeconds());
  TANDEM_RETURN_IF_ERROR(Evaluate(&line));
  if (line.scalars().empty()) return absl::OkStatus();
  TANDEM_RETURN_IF_ERROR(WithExitCode(run->WriteMetrics(line), ExitCode::kStorage));
  ShowMetrics(line);
  return absl::OkStatus();
}

// One that cannot be written is an event, and the run goes on; only the last one fails it (Finish).
absl::Status Trainer::Impl::SaveCheckpoint() {
  ShowPhase("checkpoint");
  const double start = MonotonicSeconds();
  Checkpoint checkpoint = {.step = version.value,
                           .next_group_step = frontier,
                           .run_id = run_id,
                           .order = Order(),
                           .identity = identity};
  TANDEM_ASSIGN_OR_RETURN(checkpoint.learner, learner->Save());
  const absl::Status saved = trainer::SaveCheckpoint(run->checkpoints(), checkpoint, options.model,
                                                     options.checkpoint.keep);
  times.checkpoint += MonotonicSeconds() - start;
  save_error = saved;
  if (!saved.ok()) {
    log::Error("a checkpoint could not be written", {{"reason", saved.ToString()}});
    return Event("checkpoint_failed", saved.ToString());
  }
  saved_step = version.value;
  return Event("checkpoint_saved", absl::StrCat("step ", version.value));
}

absl::Status Trainer::Impl::Finish() {
  const bool stopped = version.value < options.steps;
  if (stopped) client->CancelAll();
  if (saved_step != version.value && (stopped || options.checkpoint.at_end)) {
    TANDEM_RETURN_IF_ERROR(SaveCheckpoint());
    if (saved_step != version.value) return NotSaved(version, saved_step, save_error);
  }
  if (!stopped) return Event("run_finished", absl::StrCat("after ", version.value, " train steps"));
  return Event("run_stopped", absl::StrCat(stop_early ? "by an alert" : "by a signal", " at step ",
                                           version.value, " of ", options.steps));
}

absl::Status Trainer::Impl::Event(const std::string& kind, const std::string& message,
                                  JsonFields fields) {
  return EventAt(version, kind, message, fields);
}

absl::Status Trainer::Impl::EventOfStep(const std::string& kind, const std::string& message,
                                        JsonFields fields) {
  return EventAt(version.Next(), kind, message, fields);
}

absl::Status Trainer::Impl::EventAt(WeightVersion at, const std::string& kind,
                                    const std::string& message, const JsonFields& fields) {
  context.health->heartbeat()->Beat();
  metrics->OnEvent(kind);
  history.Event(at.value, kind, message, fields);
  log::Info(kind, {{"step", at.value}, {"message", message}});
  if (context.progress) {
    std::string line = absl::StrCat("{\"kind\":", JsonText(kind), ",\"step\":", at.value,
                                    ",\"message\":", JsonText(message));
    for (const auto& [name, json] : fields) absl::StrAppend(&line, ",\"", name, "\":", json);
    context.progress(line + "}");
  }
  return WithExitCode(run->WriteEvent(at.value, kind, message, fields), ExitCode::kStorage);
}

void Trainer::Impl::ShowPhase(const std::string& phase, const std::string& more) {
  context.health->heartbeat()->Beat();
  spans.BeginPhase(phase);
  if (!context.progress) return;
  context.progress(absl::StrCat("{\"phase\":", JsonText(phase), ",\"step\":", version.value + 1,
                                ",\"steps\":", options.steps, more, "}"));
}

void Trainer::Impl::ShowMetrics(const MetricsLine& line) {
  if (context.progress) context.progress(line.ToJson());
  log::Info("train step", {{"step", line.step()},
                           {"reward", line.Get("reward/mean")},
                           {"mean_abs_delta", line.Get("drift/mean_abs_delta")},
                           {"seconds", line.Get("time/step")}});
}

void Trainer::Impl::ShowQueues() {
  TrainerMetrics::Queues queues = {.groups_in_flight = client->num_outstanding(),
                                   .groups_waiting = buffer->num_waiting(),
                                   .servers = client->num_servers(),
                                   .servers_hung = client->num_hung(),
                                   .idle_seconds = client->IdleSeconds(),
                                   .retries = client->num_retries()};
  for (int i = 0; i < client->num_servers(); ++i) queues.servers_ready += client->IsReady(i);
  metrics->OnQueues(queues);
}

absl::Status Trainer::Impl::RunSteps() {
  TANDEM_RETURN_IF_ERROR(Event("run_started", absl::StrCat("run ", run_id)));
  TANDEM_RETURN_IF_ERROR(ConnectServers());
  if (!Stopping()) TANDEM_RETURN_IF_ERROR(WriteCard());
  context.health->SetStarted(absl::StrCat("run ", run_id, " reached its servers"));
  TANDEM_RETURN_IF_ERROR(EvaluateAtStart());
  while (version.value < options.steps && !Stopping()) {
    TANDEM_RETURN_IF_ERROR(Step());
    spans.EndStep();
  }
  return Finish();
}

// Keeps what was learned, where the weights are known to be whole.
void Trainer::Impl::RecordFailure(const absl::Status& failure) {
  absl::Status kept;
  if (weights_known && saved_step < version.value) kept = SaveCheckpoint();
  kept.Update(Event("run_failed", std::string(failure.message()),
                    {{"exit_code", absl::StrCat(ToInt(ExitCodeOf(failure)))}}));
  if (!kept.ok()) log::Error("the failure could not be recorded", {{"reason", kept.ToString()}});
}

void StepSpans::BeginStep(int64_t number) {
  EndStep();
  if (tracer == nullptr) return;
  step = std::make_unique<ScopedSpan>(TraceParent{tracer.get()}, "train_step");
  step->Set("tandem.step", number);
}

void StepSpans::BeginPhase(const std::string& name) {
  if (tracer == nullptr || (phase != nullptr && name == phase_name)) return;
  phase.reset();
  phase = std::make_unique<ScopedSpan>(parent(), name);
  phase_name = name;
}

void StepSpans::EndStep() {
  phase.reset();
  step.reset();
}

bool Trainer::finished() const { return impl_->version.value >= impl_->options.steps; }

Trainer::Trainer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Trainer::~Trainer() = default;

absl::StatusOr<std::unique_ptr<Trainer>> Trainer::Create(const TrainerOptions& options,
                                                         std::unique_ptr<Learner> learner,
                                                         TrainerContext context) {
  auto impl = std::make_unique<Impl>();
  impl->options = options;
  impl->learner = std::move(learner);
  const RunMode mode = RunDirectory::Decide(options.out, options.run_name, context.mode);
  impl->context = std::move(context);
  impl->metrics = std::make_unique<TrainerMetrics>(impl->context.observation->metrics(),
                                                   options.steps, options.completions_per_prompt);
  TANDEM_RETURN_IF_ERROR(WithExitCode(CheckOptions(options), ExitCode::kUsage));
  TANDEM_RETURN_IF_ERROR(WithExitCode(CheckBuild(options.push), ExitCode::kBadModelOrData));
  auto caller = rpc::Caller::Load(options.tls, {rpc::Role::kTrainer}, "trainer");
  TANDEM_RETURN_IF_ERROR(WithExitCode(caller.status(), ExitCode::kUsage));
  impl->options.client.caller = impl->options.push.caller = *caller;
  if (caller->is_plaintext() && !std::ranges::all_of(options.servers, IsLoopback)) {
    log::Warning(
        "PLAINTEXT calls to servers of other machines: whoever is between can change weights and "
        "completions (trainer.tls)");
  }
  auto rewards = RewardFunction::Create(options.reward);
  TANDEM_RETURN_IF_ERROR(WithExitCode(rewards.status(), ExitCode::kUsage));
  impl->rewards = *std::move(rewards);
  TANDEM_RETURN_IF_ERROR(WithExitCode(impl->OpenInputs(), ExitCode::kBadModelOrData));
  TANDEM_RETURN_IF_ERROR(impl->OpenRun(mode));
  impl->metrics->SetVersion(impl->version);
  if (!options.trace_file.empty()) {
    auto tracer = Tracer::Open(options.trace_file, "tandem-trainer");
    TANDEM_RETURN_IF_ERROR(WithExitCode(tracer.status(), ExitCode::kUsage));
    impl->spans.tracer = *std::move(tracer);
  }
  return std::unique_ptr<Trainer>(new Trainer(std::move(impl)));
}

absl::Status Trainer::Run() {
  const absl::Status status = impl_->RunSteps();
  impl_->spans.EndStep();
  impl_->context.health->heartbeat()->Rest();
  if (!status.ok()) impl_->RecordFailure(status);
  return status;
}

}  // namespace tandem::trainer
