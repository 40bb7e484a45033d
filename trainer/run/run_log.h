// RunLog: everything a training run reports while it goes on. An event or a line of metrics goes to
// the run directory, to the log, to /metrics, to the history and to the launcher's progress lines;
// phases of a step also become spans and heartbeats. Used by trainer.cc, Checkpointer and, as an
// EventSink, by Delivery and DriftMonitor. Use from the thread that trains.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "common/base/weight_version.h"
#include "common/observe/health.h"
#include "common/observe/history.h"
#include "common/observe/metrics.h"
#include "common/observe/tracer.h"
#include "proto/experience.pb.h"
#include "trainer/metrics/alerts.h"
#include "trainer/metrics/metrics_line.h"
#include "trainer/metrics/trainer_metrics.h"
#include "trainer/run/run_directory.h"
#include "trainer/run/run_state.h"

namespace tandem::trainer {

// The trainer's records in its history (common/observe/history.h): the groups it asked for,
// received, trained on or gave up, and the versions it delivered and saved. docs/run_directory.md
// has the schema. Does nothing where no history was opened. Thread-compatible.
class RunHistory {
 public:
  // Writes to a file of this process in `directory`. Errors of History::Open.
  absl::Status Open(const std::string& directory);
  // The state that this process begins with, that of the checkpoint. It tells which records of the
  // processes before it are taken back.
  void Began(const RunState& state, int64_t groups_per_step, int64_t max_staleness, bool refills);
  // Its first `num_completions` were asked for, once or in parts.
  void Asked(int64_t group_id, int64_t min_weight_version, int64_t num_completions);
  void Received(const experience::v1::ScoredGroup& group);  // fit to train on, so far
  // The step that makes `made` from the weights before it.
  void Trained(WeightVersion made, const std::vector<experience::v1::ScoredGroup>& groups);
  // An event of events.jsonl, with its fields: deliveries, drops, skipped steps, checkpoints.
  void Event(int64_t step, const std::string& kind, const std::string& message,
             const JsonFields& fields);

 private:
  std::unique_ptr<History> history_;  // null: off
};

class RunLog {
 public:
  // Pointers must outlive the log.
  struct Outputs {
    MetricsRegistry* registry = nullptr;
    Heartbeat* heartbeat = nullptr;
    std::function<void(const std::string& json)> progress;  // one line each; may be empty
  };
  RunLog(const RunState* state, int64_t planned_steps, Outputs outputs);

  // Opens OUT/NAME, which all events and metrics need. Errors of RunDirectory::Open.
  absl::Status OpenDirectory(const std::string& out, const std::string& name, RunMode mode);
  absl::Status OpenHistory(const std::string& directory);  // errors of History::Open
  absl::Status OpenTrace(const std::string& path);         // errors of Tracer::Open

  RunDirectory& directory() { return *directory_; }
  RunHistory& history() { return history_; }
  TrainerMetrics& metrics() { return metrics_; }

  // Writes an event of events.jsonl under the live weight version. Exit code kStorage where it
  // cannot be written.
  absl::Status Event(const std::string& kind, const std::string& message, JsonFields fields = {});
  // The same for an event of the step that makes the next version. A run that is resumed from the
  // live version deletes such an event.
  absl::Status EventOfStep(const std::string& kind, const std::string& message, JsonFields fields);

  // Appends a line to metrics.jsonl and shows it. Exit code kStorage where it cannot be written.
  absl::Status WriteMetrics(const MetricsLine& line);

  // Reports each alert as an event. Errors of Event.
  absl::Status WriteAlerts(const std::vector<Alert>& alerts);

  // A step is a span; the phases in it are spans below it, each until the next begins.
  void BeginStep();
  void EndStep();
  // `more`: further fields of the progress line, each with a comma before it.
  void ShowPhase(const std::string& phase, const std::string& more = "");

  TraceParent step_span() const;          // the parent of calls that the step makes
  std::string phase_traceparent() const;  // empty without a trace

 private:
  absl::Status EventAt(WeightVersion version, const std::string& kind, const std::string& message,
                       const JsonFields& fields);

  const RunState* const state_;
  const int64_t planned_steps_;
  const Outputs outputs_;
  TrainerMetrics metrics_;
  std::unique_ptr<RunDirectory> directory_;
  RunHistory history_;

  std::unique_ptr<Tracer> tracer_;  // null: no spans are kept
  std::unique_ptr<ScopedSpan> step_, phase_;
  std::string phase_name_;
};

}  // namespace tandem::trainer
