#include "cli/run/launcher.h"

#include <poll.h>
#include <signal.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/clock.h"
#include "common/base/exit_codes.h"
#include "common/base/printable.h"
#include "common/base/status_macros.h"
#include "common/files/file_system.h"

namespace tandem::cli {
namespace {

constexpr std::chrono::milliseconds kTick(50);
constexpr size_t kLogLinesShown = 8;
// Time between SIGTERM and SIGKILL for processes that have nothing to save.
constexpr double kEndSeconds = 5;

// A line of restarts.jsonl.
std::string RestartLine(const std::string& process, const ChildEnd& end, int64_t attempt,
                        int64_t limit, double delay_seconds, int64_t step) {
  return nlohmann::ordered_json({{"kind", "restarted"},
                                 {"at", Rfc3339Now()},
                                 {"step", step},
                                 {"process", process},
                                 {"reason", end.ToString()},
                                 {"attempt", attempt},
                                 {"limit", limit},
                                 {"delay_seconds", delay_seconds}})
             .dump() +
         "\n";
}

}  // namespace

Launcher::Launcher(LaunchPlan plan, const StopSignal* stop, LiveLine* live)
    : plan_(std::move(plan)),
      stop_(stop),
      live_(live),
      view_(plan_.num_steps),
      restarts_(plan_.launch) {}

LaunchResult Launcher::Run() {
  if (StartServers() && WaitUntilReady() && StartTrainer(/*again=*/false)) Watch();
  TearDown();
  live_->Clear();
  LaunchResult result = {.exit_code = exit_code_, .summary = view_.summary()};
  result.summary.restarts = restarts_.counts();
  return result;
}

void Launcher::PrintError(const absl::Status& status) {
  live_->Print(absl::StrCat("tandem: ", PrintableLines(std::string(status.message()))));
}

bool Launcher::Fail(const absl::Status& status) {
  PrintError(status);
  exit_code_ = ExitCode::kChildDied;
  return false;
}

bool Launcher::StartServers() {
  if (const absl::Status made = MakeDirectories(plan_.logs); !made.ok()) {
    Fail(made);
    exit_code_ = ExitCode::kStorage;
    return false;
  }
  servers_due_.assign(static_cast<size_t>(plan_.launch.num_servers), 0);
  servers_ready_by_ = servers_due_;
  const absl::Status started =
      servers_.Start(plan_.logs, plan_.launch.num_servers, plan_.server_argv);
  return started.ok() || Fail(started);
}

bool Launcher::WaitUntilReady() {
  const double start = MonotonicSeconds();
  for (double& by : servers_ready_by_) by = start + plan_.launch.ready_seconds;
  while (!servers_.Ready() || !ServersAreUp()) {
    if (!KeepServers(/*at_start=*/true)) return false;
    live_->Update(absl::StrCat("loading: ", servers_.addresses().size(), " of ",
                               servers_.children().size(), " rollout servers ready, ",
                               ShortDuration(MonotonicSeconds() - start)));
    if (stop_->WaitFor(kTick)) {
      exit_code_ = ExitCodeOfSignal(stop_->signal());
      return false;
    }
  }
  return true;
}

bool Launcher::StartTrainer(bool again) {
  const absl::Status started = trainer_.Start(plan_.logs, plan_.launch.num_ranks,
                                              plan_.trainer_argv(servers_.addresses(), again));
  return started.ok() || Fail(started);
}

void Launcher::Watch() {
  while (true) {
    WaitForOutput();
    if (!KeepTrainer()) return;
    // After the run was told to stop, the death of a server does not matter.
    if (kill_at_ == 0 && !KeepServers(/*at_start=*/false)) return;
    if (kill_at_ == 0 && stop_->Requested()) {
      exit_code_ = ExitCodeOfSignal(stop_->signal());
      if (!trainer_.running()) return;
      PassOnStop();
    }
    if (kill_at_ > 0 && MonotonicSeconds() > kill_at_) return;
  }
}

void Launcher::WaitForOutput() {
  if (!trainer_.running()) {
    stop_->WaitFor(kTick);
    return;
  }
  pollfd output = {.fd = trainer_.output().fd(), .events = POLLIN, .revents = 0};
  poll(&output, 1, static_cast<int>(kTick.count()));
  if ((output.revents & POLLIN) == 0) stop_->WaitFor(std::chrono::milliseconds(10));
}

void Launcher::PassOnStop() {
  live_->Print("stopping: the trainer saves first (a second Ctrl-C ends everything at once)");
  trainer_.Signal(SIGTERM);
  kill_at_ = MonotonicSeconds() + plan_.launch.stop_seconds;
}

void Launcher::Relay() {
  int64_t num_restarts = 0;
  for (const auto& [name, count] : restarts_.counts()) num_restarts += count;
  const std::string note = num_restarts == 0 ? "" : absl::StrCat("  restarts ", num_restarts);
  for (const std::string& line : trainer_.output().Lines()) {
    if (view_.Take(line)) {
      live_->Print(PrintableLines(view_.text()));
    } else if (!view_.text().empty()) {
      live_->Update(Printable(view_.text()) + note);
    }
  }
}

// Returns false if the run ends because the trainer ended and is not restarted.
bool Launcher::KeepTrainer() {
  if (!trainer_.running()) {
    // Servers may take longer to load than a trainer waits for them, so they come first.
    if (MonotonicSeconds() < trainer_due_ || !ServersAreUp()) return true;
    return StartTrainer(/*again=*/true);
  }
  const std::optional<TrainerEnd> end = trainer_.Poll();
  Relay();
  if (!end.has_value()) return true;
  exit_code_ = end->exit_code;
  if (end->exit_code == ExitCode::kOk) return false;
  if (kill_at_ > 0) {  // it was told to stop, by SIGTERM whatever signal came here
    if (IsStop(exit_code_)) exit_code_ = ExitCodeOfSignal(stop_->signal());
    return false;
  }
  return TrainerDied(*end);
}

bool Launcher::TrainerDied(const TrainerEnd& end) {
  Explain(*end.rank, end.end);
  const std::optional<double> delay = PlanRestart(*end.rank, end.end, /*is_server=*/false);
  if (!delay.has_value()) return false;
  trainer_.Stop(plan_.launch.stop_seconds, kEndSeconds);
  trainer_due_ = MonotonicSeconds() + *delay;
  exit_code_ = ExitCode::kOk;
  return true;
}

bool Launcher::ServersAreUp() const {
  return std::ranges::all_of(servers_due_, [](double due) { return due == 0; }) &&
         std::ranges::all_of(servers_ready_by_, [](double by) { return by == 0; });
}

// Returns false if the run ends because a server died and is not restarted. TearDown lets the
// trainer save. `at_start`: no server has served yet, so the exit code of one that ends may say why
// none can serve.
bool Launcher::KeepServers(bool at_start) {
  const double now = MonotonicSeconds();
  for (size_t i = 0; i < servers_.children().size(); ++i) {
    const ChildProcess& server = *servers_.children()[i];
    if (servers_due_[i] > 0) {
      if (now < servers_due_[i]) continue;
      const absl::Status started = servers_.StartAgain(i, plan_.server_argv);
      if (!started.ok()) return Fail(started);
      servers_due_[i] = 0;
      servers_ready_by_[i] = now + plan_.launch.ready_seconds;
      continue;
    }
    if (const std::optional<ChildEnd> end = servers_.children()[i]->Poll()) {
      Explain(server, *end);
      exit_code_ = at_start && SpeaksForItself(*end) ? static_cast<ExitCode>(end->exit_code)
                                                     : ExitCode::kChildDied;
      const std::optional<double> delay = PlanRestart(server, *end, /*is_server=*/true);
      if (!delay.has_value()) return false;
      exit_code_ = ExitCode::kOk;
      servers_due_[i] = now + *delay;
    } else if (servers_ready_by_[i] > 0 && servers_.IsReady(i)) {
      servers_ready_by_[i] = 0;
    } else if (servers_ready_by_[i] > 0 && now > servers_ready_by_[i]) {
      return Fail(DeadlineExceeded(server.name(), " was not ready after ",
                                   ShortDuration(plan_.launch.ready_seconds), "; its log is ",
                                   server.log_path()));
    }
  }
  return true;
}

// Returns the seconds until the child is restarted, after printing and recording it, or nullopt if
// it is not restarted. All ranks of a trainer count as one process.
std::optional<double> Launcher::PlanRestart(const ChildProcess& child, const ChildEnd& end,
                                            bool is_server) {
  const std::string name = is_server ? child.name() : "trainer";
  if (!WorthRestart(end, is_server)) return std::nullopt;
  const std::optional<double> delay = restarts_.NextDelay(name);
  if (!delay.has_value()) {
    if (plan_.launch.max_restarts > 0) {
      live_->Print(absl::StrCat(name, " was started again ", plan_.launch.max_restarts,
                                " times (launch.max_restarts): the run ends"));
    }
    return std::nullopt;
  }
  const int64_t attempt = restarts_.counts().at(name);
  live_->Print(absl::StrCat(name, " is started again in ", *delay, " s (", attempt, " of ",
                            plan_.launch.max_restarts, ")"));
  if (plan_.restarts_file.empty()) return delay;
  const auto file = AppendFile::Open(plan_.restarts_file);
  const absl::Status written =
      file.ok() ? (*file)->Append(RestartLine(name, end, attempt, plan_.launch.max_restarts, *delay,
                                              view_.last_step()))
                : file.status();
  if (!written.ok()) PrintError(written);
  return delay;
}

void Launcher::Explain(const ChildProcess& child, const ChildEnd& end) {
  live_->Print(absl::StrCat("tandem: ", child.name(), " ended with ", end.ToString(),
                            "; its last lines (", child.log_path(), "):"));
  for (const std::string& line : LastLines(child.log_path(), kLogLinesShown, child.log_begin())) {
    live_->Print("  | " + Printable(line));
  }
}

void Launcher::TearDown() {
  const double others_seconds = exit_code_ == ExitCode::kOk ? 20 : kEndSeconds;
  trainer_.Stop(plan_.launch.stop_seconds, others_seconds);
  servers_.Stop(others_seconds);
}

bool WorthRestart(const ChildEnd& end, bool is_server) {
  if (end.signal != 0) return true;
  if (end.exit_code == ToInt(ExitCode::kOk)) return is_server;
  return end.exit_code == ToInt(ExitCode::kInternal) || end.exit_code == ToInt(ExitCode::kRankLost);
}

std::optional<double> Restarts::NextDelay(const std::string& name) {
  int64_t& count = counts_[name];
  if (count >= limits_.max_restarts) {
    if (count == 0) counts_.erase(name);
    return std::nullopt;
  }
  return std::min(limits_.restart_delay_seconds * std::exp2(static_cast<double>(count++)),
                  kMaxRestartDelaySeconds);
}

}  // namespace tandem::cli
