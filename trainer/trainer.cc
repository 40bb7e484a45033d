#include "trainer/trainer.h"

#include <algorithm>
#include <chrono>
#include <functional>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/clock.h"
#include "common/base/exit_codes.h"
#include "common/base/log.h"
#include "common/base/status_macros.h"
#include "common/files/file_system.h"
#include "common/process/memory.h"
#include "common/rendezvous/loopback.h"
#include "trainer/checkpoints/best_checkpoint.h"
#include "trainer/drift/drift_monitor.h"
#include "trainer/foreign/foreign_bridge.h"
#include "trainer/foreign/foreign_report.h"
#include "trainer/group_collector.h"
#include "trainer/metrics/step_metrics.h"
#include "trainer/prompts/group_request.h"
#include "trainer/rewards/reward_queue.h"
#include "trainer/run/ledger.h"
#include "trainer/run/run_owner.h"
#include "trainer/run_setup.h"
#include "trainer/weight_push/delivery.h"

namespace tandem::trainer {

using experience::v1::ScoredGroup;

namespace {

constexpr std::chrono::seconds kLookUpEach(2);

}  // namespace

absl::Status Trainer::Collect() {
  const double start = MonotonicSeconds();
  while (!Stopping()) {
    collector_->Ask();
    if (collector_->StepReady()) break;
    delivery_->UpdateServers();
    TANDEM_RETURN_IF_ERROR(delivery_->Sync());
    TANDEM_RETURN_IF_ERROR(collector_->Wait());
    ShowQueues();
    const int64_t done = collector_->num_done();
    log_->ShowPhase("rollout", absl::StrCat(",\"groups_done\":", done, ",\"groups\":",
                                            std::max(done, options_.prompts_per_step)));
  }
  times_.reward = collector_->TakeRewardSeconds();
  times_.rollout = MonotonicSeconds() - start - times_.reward;
  return absl::OkStatus();
}

// Stages 4 to 8. Returns false when the step made no new weights. A step that has only groups of
// equal rewards has no gradient. It counts as a train step without an update, so that a run that
// starts with rare rewards goes on, and its weights are published under the next version as they
// are.
absl::StatusOr<bool> Trainer::TrainOn(StepExperience* step, MetricsLine* line) {
  log_->ShowPhase("train");
  AddGroupMetrics(*step, state_.version, line);
  report_ = {};
  if (step->OnlyEqualRewards()) {
    AddAdvantageMetrics(step->groups, line);
    for (const char* const none : {"loss/num_tokens", "loss/num_updates"}) line->AddCount(none, 0);
    line->Add("time/update", 0);
    return true;
  }
  state_.weights_known = false;
  TANDEM_ASSIGN_OR_RETURN(report_, learner_->Train(step->groups, state_.version));
  state_.weights_known = true;
  if (!report_.skip_reason.empty()) return false;
  TakeTrainedAdvantages(report_.advantages, &step->groups);
  AddAdvantageMetrics(step->groups, line);
  for (const auto& [name, value] : report_.metrics) line->Add(name, value);
  for (const auto& [name, counts] : report_.histograms) line->AddArray(name, counts);
  for (const auto& [name, json] : report_.documents) line->AddDocument(name, json);
  return true;
}

// Pushes the live weights, and keeps what a later capture may need of them.
absl::StatusOr<PushTotals> Trainer::Publish(CastWeights cast) {
  const bool is_bf16 = server_dtype_ == DType::kBF16;
  TANDEM_RETURN_IF_ERROR(
      recent_->Remember(state_.version, is_bf16 ? std::string(RoundingName(cast.rounding)) : "none",
                        [this] { return learner_->Keep(); }));
  TANDEM_ASSIGN_OR_RETURN(const PushTotals totals,
                          delivery_->Publish(state_.version, std::move(cast)));
  recent_->NoteServed(publisher_->version(), publisher_->served_digests());
  TANDEM_RETURN_IF_ERROR(
      ReportForeignDeliveries(foreign_.get(), std::bind_front(&RunLog::Event, log_.get())));
  return totals;
}

// Stage 9.
absl::Status Trainer::Push(MetricsLine* line) {
  log_->ShowPhase("push");
  const double start = MonotonicSeconds();
  TANDEM_ASSIGN_OR_RETURN(CastWeights cast, learner_->Cast(server_dtype_));
  const CastNumbers numbers = cast.numbers;
  publisher_->SetTraceparent(log_->phase_traceparent());
  TANDEM_ASSIGN_OR_RETURN(const PushTotals totals, Publish(std::move(cast)));
  publisher_->SetTraceparent("");
  collector_->StepInstalled();
  times_.push = MonotonicSeconds() - start;
  drift_->SetPushDistance(numbers.update_norm);
  AddPushNumbers(publisher_->version(), numbers, totals, line);
  return absl::OkStatus();
}

// A capture that cannot be written is an event, and the run goes on.
absl::Status Trainer::Capture(const StepExperience& step, MetricsLine* line) {
  const int64_t number = line->step();
  if (!captures_->Due(number)) return absl::OkStatus();
  if (step.groups.empty()) return log_->Event("capture_failed", "no group of the step was trained");
  log_->ShowPhase("capture");
  const double start = MonotonicSeconds();
  const absl::Status written =
      captures_->Write(DescribeCapture(Parts(), number), step.groups, report_.proximal_logprobs,
                       report_.advantages, *recent_);
  line->Add("time/capture", MonotonicSeconds() - start);
  if (written.ok()) return log_->Event("capture_written", absl::StrCat("captures/step_", number));
  log::Error("a capture could not be written", {{"reason", written.ToString()}});
  return log_->Event("capture_failed", written.ToString());
}

// One train step: stages 1 to 3, the proof of delivery, stages 4 to 8, stage 9, then the records.
absl::Status Trainer::Step() {
  times_ = {};
  const double start = MonotonicSeconds();
  log_->BeginStep();
  TANDEM_RETURN_IF_ERROR(Collect());
  if (Stopping()) return absl::OkStatus();
  TANDEM_RETURN_IF_ERROR(delivery_->Verify());
  StepExperience step = collector_->TakeStep();
  log_->metrics().OnTaken(step, state_.version);
  for (const DroppedGroup& dropped : step.dropped) {
    TANDEM_RETURN_IF_ERROR(log_->EventOfStep(
        "group_dropped", dropped.message.empty() ? dropped.reason : dropped.message,
        {{"group_id", absl::StrCat(dropped.group_id)}, {"reason", JsonText(dropped.reason)}}));
  }
  if (step.groups.empty() && !step.OnlyEqualRewards()) {
    const auto says = [](const DroppedGroup& group) { return !group.message.empty(); };
    const auto why = std::ranges::find_if(step.dropped, says);
    return SkipStep(absl::StrCat("no group is left to train on",
                                 why == step.dropped.end() ? "" : ": " + why->message),
                    step);
  }
  MetricsLine line(state_.version.Next().value, log_->directory().ElapsedSeconds());
  TANDEM_RETURN_IF_ERROR(drift_->MeasureProbe(state_.version, step, &line));
  TANDEM_ASSIGN_OR_RETURN(const std::optional<StepSplit> split,
                          drift_->ScoreForSplit(state_.version, step, &line));
  TANDEM_ASSIGN_OR_RETURN(const bool trained, TrainOn(&step, &line));
  if (!trained) return SkipStep(report_.skip_reason, step);
  log_->history().Trained(state_.version.Next(), step.groups);
  drift_->Report(state_.version, step, split, report_.proximal_logprobs, &line);
  TANDEM_RETURN_IF_ERROR(Capture(step, &line));
  state_.skipped_in_row = 0;
  state_.version = state_.version.Next();
  collector_->Commit();
  // Before the push: a run that fails there saves these weights, and their groups are consumed.
  TANDEM_RETURN_IF_ERROR(RecordGroups(step, ""));
  log_->metrics().SetVersion(state_.version);
  TANDEM_RETURN_IF_ERROR(Push(&line));
  TANDEM_RETURN_IF_ERROR(delivery_->Verify());
  return RecordStep(step, MonotonicSeconds() - start, &line);
}

absl::Status Trainer::SkipStep(const std::string& reason, const StepExperience& step) {
  collector_->StepInstalled();
  collector_->Commit();
  drift_->SetSkippedSteps(state_.frontier.step - state_.version.value);
  TANDEM_RETURN_IF_ERROR(RecordGroups(step, reason));
  ++state_.unrecorded_skips;
  for (const DroppedGroup& group : step.dropped) {
    state_.unrecorded_drops.push_back({group.group_id, group.reason});
  }
  for (const ScoredGroup& group : step.groups) {
    state_.unrecorded_drops.push_back({group.group_id(), "step_skipped"});
  }
  const auto id = [](std::string* out, const ScoredGroup& group) {
    absl::StrAppend(out, group.group_id());
  };
  TANDEM_RETURN_IF_ERROR(log_->EventOfStep(
      "step_skipped", reason,
      {{"group_ids", absl::StrCat("[", absl::StrJoin(step.groups, ",", id), "]")}}));
  if (++state_.skipped_in_row <= options_.max_skipped_steps) {
    WaitForRewardService();
    return absl::OkStatus();
  }
  return WithExitCode(Internal(state_.skipped_in_row,
                               " train steps in a row made no weights "
                               "(trainer.max_skipped_steps): ",
                               reason),
                      ExitCode::kTooManySkipped);
}

// While a reward service is not asked, another step would be lost as this one was.
void Trainer::WaitForRewardService() {
  constexpr std::chrono::milliseconds kWait(100);
  while (!Stopping() && MonotonicSeconds() < rewards_->unanswered_until()) {
    if (context_.stop->WaitFor(kWait)) return;
  }
}

absl::Status Trainer::RecordStep(const StepExperience& step, double step_seconds,
                                 MetricsLine* line) {
  const bool eval_due = inputs_->prompts.eval != nullptr && options_.eval.every > 0 &&
                        state_.version.value % options_.eval.every == 0;
  const bool last = state_.version.value >= options_.steps;
  if (eval_due || (last && inputs_->prompts.eval != nullptr && options_.eval.at_end)) {
    TANDEM_RETURN_IF_ERROR(Evaluate(line));
  }
  std::vector<DroppedGroup> dropped = std::exchange(state_.unrecorded_drops, {});
  dropped.insert(dropped.end(), step.dropped.begin(), step.dropped.end());
  AddDropMetrics(step.groups, dropped, line);
  if (rewards_->is_external()) {
    const RewardNumbers numbers = rewards_->TakeNumbers();
    AddExternalRewards(numbers, SampledGroups(step), line);
    log_->metrics().OnRewards(numbers);
  }
  line->AddCount("groups/consumed", step.num_consumed());
  line->AddCount("groups/trained", std::ssize(step.groups));
  line->AddCount("skipped/steps", std::exchange(state_.unrecorded_skips, 0));
  line->Add("time/rollout", times_.rollout);
  line->Add("time/reward", times_.reward);
  line->Add("time/push", times_.push);
  line->Add("time/checkpoint", checkpointer_->TakeSeconds());
  line->Add("time/eval", times_.eval);
  line->Add("time/step", step_seconds);
  line->AddCount("memory/peak_bytes", PeakMemoryBytes());
  const int64_t num_sampled = CountTokens(SampledGroups(step));
  line->Add("throughput/sampled_tokens_per_s",
            static_cast<double>(num_sampled) / std::max(1e-9, times_.rollout));
  line->Add("throughput/trained_tokens_per_s",
            static_cast<double>(report_.num_tokens) / std::max(1e-9, step_seconds));
  const auto token_text = [this](int32_t id) {
    return inputs_->tokenizer->Decode(std::span(&id, 1), /*skip_special_tokens=*/false)
        .value_or("");
  };
  TANDEM_RETURN_IF_ERROR(
      WithExitCode(log_->directory().WriteRollouts(state_.version.value, step,
                                                   report_.proximal_logprobs, token_text),
                   ExitCode::kStorage));
  TANDEM_RETURN_IF_ERROR(log_->WriteMetrics(*line));
  ShowQueues();
  log_->metrics().OnStep(*line, report_.num_tokens, num_sampled);
  TANDEM_RETURN_IF_ERROR(RaiseAlerts(*line));
  // After the records: a resumed run deletes those newer than its checkpoint, and cannot make up
  // for missing ones.
  return checkpointer_->IsDue() ? SaveCheckpoint(*line) : absl::OkStatus();
}

absl::Status Trainer::RecordGroups(const StepExperience& step, const std::string& skip_reason) {
  // A step that made weights has moved the version already.
  const bool skipped = !skip_reason.empty();
  const WeightVersion before = {state_.version.value - (skipped ? 0 : 1)};
  return WithExitCode(ledger_->Record({&step, state_.frontier, before, skip_reason}),
                      ExitCode::kStorage);
}

absl::Status Trainer::RaiseAlerts(const MetricsLine& line) {
  const TrainStepOptions& step = options_.learner.step;
  const LossKind loss = {.bypass = step.correction.mode == offpolicy::CorrectionMode::kBypass,
                         .objective = step.loss.objective.kind};
  const std::vector<Alert> alerts = CheckAlerts(line, options_.alerts, loss);
  state_.stopped_by_alert |= std::ranges::any_of(alerts, &Alert::stops_run);
  const auto back = std::ranges::find_if(alerts, &Alert::rolls_back);
  if (back != alerts.end()) state_.roll_back_reason = Describe(*back);
  return log_->WriteAlerts(alerts);
}

absl::Status Trainer::Evaluate(MetricsLine* line) {
  log_->ShowPhase("eval");
  const double start = MonotonicSeconds();
  const int64_t asked = options_.eval.max_new_tokens;
  rollout::v1::SamplingParams sampling = MakeSampling(options_.sampling);
  if (asked > 0) sampling.set_max_new_tokens(static_cast<int32_t>(asked));
  const EvaluationContext evaluation = {
      .run = {.run_id = state_.run_id,
              .seed = options_.seed,
              .sampling = std::move(sampling),
              .turns = TurnsOf(options_)},
      .step = state_.version.value,
      .version = publisher_->version().value,  // behind ours by push.hold_back_versions
      .environments = inputs_->environments.get(),
      .tick = [this] { return delivery_->Sync(); },
      .other = [this](FinishedGroup group) { return collector_->Take(std::move(group)); }};
  const auto result = trainer::Evaluate(inputs_->prompts.eval->prompts(), options_.eval, evaluation,
                                        *client_, *rewards_, *context_.stop);
  times_.eval = MonotonicSeconds() - start;
  if (result.status().code() == absl::StatusCode::kCancelled) return absl::OkStatus();
  TANDEM_RETURN_IF_ERROR(result.status());
  if (!result->none_answered.ok()) TANDEM_RETURN_IF_ERROR(EvaluationFailed(result->none_answered));
  if (result->num_prompts == 0) return absl::OkStatus();
  const int64_t num_too_long = inputs_->prompts.eval->num_dropped();
  AddEvaluation(*result, evaluation.version, num_too_long, line);
  return log_->Event("eval", Describe(*result, num_too_long));
}

// A failure before the first step ends the run: nothing is lost, and the evaluations after it would
// likely fail too, as would the first of a run that is started again. A later failure is an event,
// and the run goes on without the numbers.
absl::Status Trainer::EvaluationFailed(const absl::Status& why) {
  if (state_.version.value == 0) return WithExitCode(why, ExitCode::kBadModelOrData);
  log::Error("an evaluation failed", {{"reason", why.ToString()}});
  return log_->Event("eval_failed", why.ToString());
}

absl::Status Trainer::EvaluateAtStart() {
  if (state_.resumed || inputs_->prompts.eval == nullptr || !options_.eval.at_start || Stopping()) {
    return absl::OkStatus();
  }
  MetricsLine line(state_.version.value, log_->directory().ElapsedSeconds());
  TANDEM_RETURN_IF_ERROR(Evaluate(&line));
  if (line.scalars().empty()) return absl::OkStatus();
  return log_->WriteMetrics(line);
}

absl::Status Trainer::Finish() {
  const bool stopped = !finished();
  if (stopped) client_->CancelAll();
  rewards_->Cancel();
  TANDEM_RETURN_IF_ERROR(RollBack());
  TANDEM_RETURN_IF_ERROR(checkpointer_->SaveLast(stopped));
  const int64_t steps = state_.version.value;
  if (!stopped) return log_->Event("run_finished", absl::StrCat("after ", steps, " train steps"));
  return log_->Event("run_stopped",
                     absl::StrCat(state_.stopped_by_alert ? "by an alert" : "by a signal",
                                  " at step ", steps, " of ", options_.steps));
}

// Keeps what was learned, where the weights are known to be whole.
void Trainer::RecordFailure(const absl::Status& failure) {
  absl::Status kept;
  if (state_.weights_known && !checkpointer_->HasSavedLive()) kept = checkpointer_->Save();
  kept.Update(log_->Event("run_failed", std::string(failure.message()),
                          {{"exit_code", absl::StrCat(ToInt(ExitCodeOf(failure)))}}));
  if (!kept.ok()) log::Error("the failure could not be recorded", {{"reason", kept.ToString()}});
}

void Trainer::ShowQueues() {
  TrainerMetrics::Queues queues = client_->queues();
  queues.groups_waiting = collector_->num_waiting();
  queues.groups_unrewarded = rewards_->num_open();
  log_->metrics().OnQueues(queues);
}

RunParts Trainer::Parts() const {
  return {options_, *inputs_, state_, *learner_, *client_, *publisher_};
}

absl::Status Trainer::BridgeForeignServers(rpc::Caller* caller) {
  auto bridge = ForeignBridge::Start(
      options_.servers, {.model = options_.model,
                         .weights_dir = WeightsDirOf(options_.foreign, log_->directory().path()),
                         .in_flight = options_.foreign.in_flight,
                         .checksums = options_.foreign.checksums,
                         .temperature = options_.sampling.temperature,
                         .call_seconds = options_.client.call_timeout_seconds,
                         .push_seconds = options_.push.timeout_seconds,
                         .tokenizer = inputs_->tokenizer.get()});
  TANDEM_RETURN_IF_ERROR(WithExitCode(bridge.status(), ExitCode::kStorage));
  foreign_ = *std::move(bridge);
  if (foreign_ != nullptr) foreign_->RouteTo(caller);
  return absl::OkStatus();
}

absl::Status Trainer::OpenRun(RunMode mode, rpc::Caller caller) {
  const bool resumes = mode == RunMode::kResume;
  TANDEM_RETURN_IF_ERROR(log_->OpenDirectory(options_.out, options_.run_name, mode));
  const std::string& path = log_->directory().path();
  const auto owner = OpenRunOwner(path + "/owner", options_.run_name, resumes);
  TANDEM_RETURN_IF_ERROR(WithExitCode(owner.status(), ExitCode::kStorage));
  state_.run_id = owner->run_id;
  caller.UseSecret(owner->secret);
  TANDEM_RETURN_IF_ERROR(BridgeForeignServers(&caller));
  pool_ = std::make_unique<ServerPool>(std::vector<std::string>{}, caller);
  if (!options_.history.empty()) {
    TANDEM_RETURN_IF_ERROR(WithExitCode(log_->OpenHistory(options_.history), ExitCode::kStorage));
  }
  TANDEM_RETURN_IF_ERROR(WithExitCode(inputs_->rewards->Open(state_.run_id), ExitCode::kStorage));
  checkpointer_ = std::make_unique<Checkpointer>(options_.checkpoint, inputs_->identity,
                                                 learner_.get(), &state_, log_.get());
  if (resumes) {
    TANDEM_RETURN_IF_ERROR(checkpointer_->Restore(context_.mode == RunMode::kResumeOrFresh));
  }
  TANDEM_RETURN_IF_ERROR(OpenBestCheckpoint());
  auto ledger = Ledger::Open(path);
  TANDEM_RETURN_IF_ERROR(WithExitCode(ledger.status(), ExitCode::kStorage));
  ledger_ = *std::move(ledger);
  TANDEM_RETURN_IF_ERROR(WithExitCode(ledger_->CutAfter(state_.frontier), ExitCode::kStorage));
  log_->history().Began(state_, options_.prompts_per_step, options_.max_staleness,
                        !HasEqualSteps(options_.dynamic_sampling));
  TANDEM_RETURN_IF_ERROR(WithExitCode(RecoverDirectories(path + "/captures"), ExitCode::kStorage));
  captures_ = std::make_unique<CaptureWriter>(path + "/captures", options_.capture, options_.steps,
                                              options_.max_staleness);
  recent_ =
      std::make_unique<RecentWeights>(captures_->Reach(), [this](int64_t step, int64_t of_version) {
        // The split needs no copy of the weights a step starts from: the trainer has them then.
        const int64_t lag = step - 1 - of_version;
        return captures_->NeedsMasters(step) ||
               (options_.split.Due(step) && lag > 0 && lag <= options_.max_staleness);
      });
  drift_ = std::make_unique<DriftMonitor>(
      DriftMonitorOptions{options_.probe, options_.split, options_.sampling,
                          options_.prompts_per_step, HasEqualSteps(options_.dynamic_sampling),
                          options_.max_staleness, options_.push.hold_back_versions},
      DriftMonitor::Context{learner_.get(), recent_.get(),
                            std::bind_front(&RunLog::Event, log_.get()),
                            [this](const std::string& phase) { log_->ShowPhase(phase); }});
  drift_->SetSkippedSteps(state_.frontier.step - state_.version.value);
  if (state_.resumed) drift_->SetPushDistance(std::numeric_limits<double>::quiet_NaN());
  TANDEM_RETURN_IF_ERROR(drift_->Open(path, resumes, inputs_->model_config));
  return WithExitCode(log_->directory().WriteText("config.yaml", context_.resolved_config),
                      ExitCode::kStorage);
}

absl::Status Trainer::ConnectServers() {
  RolloutClientOptions client_options = options_.client;
  const int64_t servers = static_cast<int64_t>(options_.servers.size());
  if (options_.deterministic) {
    // A step's groups are held back at their server until all of them are there.
    client_options.groups_in_flight = std::max(client_options.groups_in_flight,
                                               (options_.prompts_per_step + servers - 1) / servers);
  }
  lookup_ = std::make_unique<ServerLookup>(options_.servers, kLookUpEach, context_.resolver);
  for (const std::string& address : lookup_->Addresses()) pool_->Add(address);
  scorer_ = std::make_unique<ServerScorer>(pool_.get(), options_.client.call_timeout_seconds);
  client_ = std::make_unique<RolloutClient>(
      pool_.get(), state_.run_id, client_options,
      [this](const rollout::v1::GetInfoResponse& info) {
        return CheckServer(info, options_, *learner_, *inputs_->tokenizer);
      },
      [this](const rollout::v1::GenerateGroupRequest& request, FinishedGroup* group) {
        group->replay = drift_->ReplayWhenSampled(request, *group);
      });
  rewards_ = std::make_unique<RewardQueue>(inputs_->rewards.get(), [this] { client_->Wake(); });
  drift_->Connect(state_.run_id, client_.get(), scorer_.get());
  publisher_ = std::make_unique<WeightPublisher>(pool_.get(), state_.run_id, options_.push);
  collector_ = std::make_unique<GroupCollector>(
      GroupCollector::Context{&options_, inputs_.get(), &state_, log_.get(), client_.get(),
                              rewards_.get(), drift_.get(), publisher_.get()});
  delivery_ = std::make_unique<Delivery>(lookup_.get(), client_.get(), publisher_.get(),
                                         options_.push.hold_back_versions,
                                         std::bind_front(&RunLog::Event, log_.get()));
  TANDEM_RETURN_IF_ERROR(delivery_->WaitForServers(options_.client.start_patience(),
                                                   options_.deterministic, *context_.stop));
  if (Stopping()) return absl::OkStatus();
  TANDEM_ASSIGN_OR_RETURN(server_dtype_, delivery_->ServerDType());
  drift_->SetServerDType(server_dtype_);
  if (options_.push.quantise_on == QuantiseOn::kTrainer) {
    TANDEM_ASSIGN_OR_RETURN(const ModelConfig config, ReadModelConfig(options_.model));
    TANDEM_ASSIGN_OR_RETURN(const std::string formats, delivery_->QuantiseFor(config));
    if (!formats.empty()) {
      TANDEM_RETURN_IF_ERROR(log_->Event("push_quantises", "weights are pushed as " + formats));
    }
  }
  TANDEM_ASSIGN_OR_RETURN(CastWeights cast, learner_->Cast(server_dtype_));
  TANDEM_RETURN_IF_ERROR(Publish(std::move(cast)).status());
  return delivery_->Verify();
}

absl::Status Trainer::RunSteps() {
  TANDEM_RETURN_IF_ERROR(log_->Event("run_started", absl::StrCat("run ", state_.run_id)));
  TANDEM_RETURN_IF_ERROR(ConnectServers());
  if (!Stopping()) {
    TANDEM_RETURN_IF_ERROR(WithExitCode(
        log_->directory().WriteText("run.json", DescribeRun(Parts()) + "\n"), ExitCode::kStorage));
  }
  context_.health->SetStarted(absl::StrCat("run ", state_.run_id, " reached its servers"));
  TANDEM_RETURN_IF_ERROR(EvaluateAtStart());
  while (!finished() && !Stopping()) {
    TANDEM_RETURN_IF_ERROR(Step());
    log_->EndStep();
  }
  return Finish();
}

absl::Status Trainer::Run() {
  const absl::Status status = RunSteps();
  log_->EndStep();
  context_.health->heartbeat()->Rest();
  if (!status.ok()) RecordFailure(status);
  return status;
}

Trainer::Trainer(const TrainerOptions& options, std::unique_ptr<Learner> learner,
                 TrainerContext context)
    : options_(options),
      context_(std::move(context)),
      learner_(std::move(learner)),
      log_(std::make_unique<RunLog>(
          &state_, options.steps,
          RunLog::Outputs{context_.observation->metrics(), context_.health->heartbeat(),
                          context_.progress})) {}

Trainer::~Trainer() {
  // The client's threads wait for its answers.
  if (inputs_ != nullptr && inputs_->environments != nullptr) inputs_->environments->Cancel();
}

absl::StatusOr<std::unique_ptr<Trainer>> Trainer::Create(const TrainerOptions& options,
                                                         std::unique_ptr<Learner> learner,
                                                         TrainerContext context) {
  const RunMode mode = RunDirectory::Decide(options.out, options.run_name, context.mode);
  std::unique_ptr<Trainer> trainer(new Trainer(options, std::move(learner), std::move(context)));
  TANDEM_RETURN_IF_ERROR(WithExitCode(CheckOptions(options), ExitCode::kUsage));
  TANDEM_RETURN_IF_ERROR(WithExitCode(CheckBuild(options.push), ExitCode::kBadModelOrData));
  auto caller = rpc::Caller::Load(options.tls, {rpc::Role::kTrainer}, "trainer");
  TANDEM_RETURN_IF_ERROR(WithExitCode(caller.status(), ExitCode::kUsage));
  const auto is_here = [](const std::string& server) {
    const std::string foreign = ForeignHostPort(server);
    return IsLoopback(foreign.empty() ? server : foreign);
  };
  if (caller->is_plaintext() && !std::ranges::all_of(options.servers, is_here)) {
    log::Warning(
        "PLAINTEXT calls to servers of other machines: whoever is between can change weights and "
        "completions (trainer.tls)");
  }
  TANDEM_ASSIGN_OR_RETURN(RunInputs inputs, OpenRunInputs(trainer->options_, *trainer->learner_));
  trainer->inputs_ = std::make_unique<RunInputs>(std::move(inputs));
  TANDEM_RETURN_IF_ERROR(trainer->OpenRun(mode, *std::move(caller)));
  trainer->log_->metrics().SetVersion(trainer->state_.version);
  if (!options.trace_file.empty()) {
    TANDEM_RETURN_IF_ERROR(
        WithExitCode(trainer->log_->OpenTrace(options.trace_file), ExitCode::kUsage));
  }
  return trainer;
}

}  // namespace tandem::trainer
