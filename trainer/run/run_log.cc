#include "trainer/run/run_log.h"

#include <nlohmann/json.hpp>

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/exit_codes.h"
#include "common/base/json.h"
#include "common/base/log.h"
#include "common/base/status_macros.h"
#include "trainer/experience/drawn_tokens.h"

namespace tandem::trainer {

RunLog::RunLog(const RunState* state, int64_t planned_steps, Outputs outputs)
    : state_(state),
      planned_steps_(planned_steps),
      outputs_(std::move(outputs)),
      metrics_(outputs_.registry, planned_steps) {}

absl::Status RunLog::OpenDirectory(const std::string& out, const std::string& name, RunMode mode) {
  TANDEM_ASSIGN_OR_RETURN(directory_, RunDirectory::Open(out, name, mode));
  return absl::OkStatus();
}

absl::Status RunLog::OpenHistory(const std::string& directory) { return history_.Open(directory); }

absl::Status RunLog::OpenTrace(const std::string& path) {
  TANDEM_ASSIGN_OR_RETURN(tracer_, Tracer::Open(path, "tandem-trainer"));
  return absl::OkStatus();
}

absl::Status RunLog::Event(const std::string& kind, const std::string& message, JsonFields fields) {
  return EventAt(state_->version, kind, message, fields);
}

absl::Status RunLog::EventOfStep(const std::string& kind, const std::string& message,
                                 JsonFields fields) {
  return EventAt(state_->version.Next(), kind, message, fields);
}

absl::Status RunLog::EventAt(WeightVersion version, const std::string& kind,
                             const std::string& message, const JsonFields& fields) {
  const int64_t step = version.value;
  outputs_.heartbeat->Beat();
  metrics_.OnEvent(kind);
  history_.Event(step, kind, message, fields);
  log::Info(kind, {{"step", step}, {"message", message}});
  if (outputs_.progress) {
    std::string line = absl::StrCat("{\"kind\":", JsonText(kind), ",\"step\":", step,
                                    ",\"message\":", JsonText(message));
    for (const auto& [name, json] : fields) absl::StrAppend(&line, ",\"", name, "\":", json);
    outputs_.progress(line + "}");
  }
  return WithExitCode(directory_->WriteEvent(step, kind, message, fields), ExitCode::kStorage);
}

absl::Status RunLog::WriteMetrics(const MetricsLine& line) {
  TANDEM_RETURN_IF_ERROR(WithExitCode(directory_->WriteMetrics(line), ExitCode::kStorage));
  if (outputs_.progress) outputs_.progress(line.ToJson());
  log::Info("train step", {{"step", line.step()},
                           {"reward", line.Get("reward/mean")},
                           {"mean_abs_delta", line.Get("drift/mean_abs_delta")},
                           {"seconds", line.Get("time/step")}});
  return absl::OkStatus();
}

absl::Status RunLog::WriteAlerts(const std::vector<Alert>& alerts) {
  for (const Alert& alert : alerts) {
    metrics_.OnAlert(alert.name);
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
  }
  return absl::OkStatus();
}

void RunLog::BeginStep() {
  EndStep();
  if (tracer_ == nullptr) return;
  step_ = std::make_unique<ScopedSpan>(TraceParent{tracer_.get()}, "train_step");
  step_->Set("tandem.step", state_->version.Next().value);
}

void RunLog::EndStep() {
  phase_.reset();
  step_.reset();
}

void RunLog::ShowPhase(const std::string& phase, const std::string& more) {
  outputs_.heartbeat->Beat();
  if (tracer_ != nullptr && (phase_ == nullptr || phase != phase_name_)) {
    phase_.reset();
    phase_ = std::make_unique<ScopedSpan>(step_span(), phase);
    phase_name_ = phase;
  }
  if (!outputs_.progress) return;
  outputs_.progress(absl::StrCat("{\"phase\":", JsonText(phase),
                                 ",\"step\":", state_->version.value + 1,
                                 ",\"steps\":", planned_steps_, more, "}"));
}

TraceParent RunLog::step_span() const {
  return step_ == nullptr ? TraceParent{tracer_.get()} : step_->parent();
}

std::string RunLog::phase_traceparent() const {
  return phase_ == nullptr ? "" : phase_->traceparent();
}

using nlohmann::ordered_json;

absl::Status RunHistory::Open(const std::string& directory) {
  TANDEM_ASSIGN_OR_RETURN(history_, History::Open(directory, "trainer"));
  return absl::OkStatus();
}

void RunHistory::Began(const RunState& state, int64_t groups_per_step, int64_t max_staleness,
                       bool refills) {
  if (history_ == nullptr) return;
  history_->Write({{"event", "began"},
                   {"run_id", state.run_id},
                   {"resumed", state.resumed},
                   {"version", state.version.value},
                   {"first_group", state.frontier.group},
                   {"groups_per_step", groups_per_step},
                   {"max_staleness", max_staleness},
                   {"refills", refills}});
}

void RunHistory::Asked(int64_t group_id, int64_t min_weight_version, int64_t num_completions) {
  if (history_ == nullptr) return;
  history_->Write({{"event", "asked"},
                   {"group_id", group_id},
                   {"min_version", min_weight_version},
                   {"completions", num_completions}});
}

void RunHistory::Received(const experience::v1::ScoredGroup& group) {
  if (history_ == nullptr) return;
  ordered_json event = {{"event", "received"},
                        {"group_id", group.group_id()},
                        {"server", group.server()},
                        {"completions", ordered_json::array()}};
  for (const auto& member : group.completions()) {
    const rollout::v1::Completion& completion = member.completion();
    ordered_json one = {{"index", completion.index()},
                        {"tokens", NumDrawn(completion)},
                        {"spans", ordered_json::array()}};
    for (const auto& span : completion.version_spans()) {
      one["spans"].push_back({span.weight_version(), span.num_tokens()});
    }
    event["completions"].push_back(std::move(one));
  }
  history_->Write(event);
}

void RunHistory::Trained(WeightVersion made,
                         const std::vector<experience::v1::ScoredGroup>& groups) {
  if (history_ == nullptr) return;
  ordered_json event = {
      {"event", "trained"}, {"step", made.value}, {"group_ids", ordered_json::array()}};
  for (const auto& group : groups) event["group_ids"].push_back(group.group_id());
  history_->Write(event);
}

void RunHistory::Event(int64_t step, const std::string& kind, const std::string& message,
                       const JsonFields& fields) {
  if (history_ == nullptr) return;
  ordered_json event = {{"event", kind}, {"step", step}, {"message", message}};
  for (const auto& [name, json] : fields) {
    event[name] = ordered_json::parse(json, nullptr, /*allow_exceptions=*/false);
  }
  history_->Write(event);
}

}  // namespace tandem::trainer
