#include "deploy/tandem/launcher.h"

#include <poll.h>
#include <signal.h>

#include <chrono>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/clock.h"
#include "common/base/file_system.h"
#include "deploy/tandem/node_ranks.h"

namespace tandem::front {
namespace {

constexpr std::chrono::milliseconds kTick(50);
constexpr size_t kLogLinesShown = 8;

// Codes that say why the trainer ended; anything else is a process that died.
bool SpeaksForItself(const ChildEnd& end) {
  return end.signal == 0 && ((end.exit_code >= ToInt(ExitCode::kInternal) &&
                              end.exit_code <= ToInt(ExitCode::kRankLost)) ||
                             IsStop(static_cast<ExitCode>(end.exit_code)));
}

// None for a trainer alone.
std::vector<std::string> VariablesOfRank(int64_t rank, int64_t num_ranks, int port) {
  if (num_ranks == 1) return {};
  return RankVariables(
      {.per_node = static_cast<int>(num_ranks), .master_port = port, .launch_id = "tandem"},
      static_cast<int>(rank));
}

}  // namespace

Launcher::Launcher(LaunchPlan plan, const StopSignal* stop, LiveLine* live)
    : plan_(std::move(plan)), stop_(stop), live_(live), view_(plan_.num_steps) {}

LaunchResult Launcher::Run() {
  if (StartServers() && WaitUntilReady() && StartTrainer()) Watch();
  TearDown();
  live_->Clear();
  return {.exit_code = exit_code_, .summary = view_.summary()};
}

bool Launcher::Fail(const absl::Status& status) {
  live_->Print(absl::StrCat("tandem: ", status.message()));
  exit_code_ = ExitCode::kChildDied;
  return false;
}

bool Launcher::StartServers() {
  if (const absl::Status made = MakeDirectories(plan_.logs); !made.ok()) {
    Fail(made);
    exit_code_ = ExitCode::kStorage;
    return false;
  }
  const absl::Status started = servers_.Start(plan_.logs, plan_.num_servers, plan_.server_argv);
  return started.ok() || Fail(started);
}

bool Launcher::WaitUntilReady() {
  const double start = MonotonicSeconds();
  const auto& children = servers_.children();
  while (!servers_.Ready()) {
    if (ServerEnded()) return false;
    const double waited = MonotonicSeconds() - start;
    const size_t num_ready = servers_.addresses().size();
    if (waited > plan_.ready_seconds) {
      return Fail(absl::DeadlineExceededError(
          absl::StrCat(children[num_ready]->name(), " was not ready after ", ShortDuration(waited),
                       "; its log is ", children[num_ready]->log_path())));
    }
    live_->Update(absl::StrCat("loading: ", num_ready, " of ", children.size(),
                               " rollout servers ready, ", ShortDuration(waited)));
    if (stop_->WaitFor(kTick)) {
      exit_code_ = ExitCodeOfSignal(stop_->signal());
      return false;
    }
  }
  return true;
}

bool Launcher::StartTrainer() {
  const int port = plan_.num_ranks == 1 ? 0 : FreePort();
  for (int64_t rank = 0; rank < plan_.num_ranks; ++rank) {
    const std::string name = rank == 0 ? "trainer" : absl::StrCat("trainer_", rank);
    auto child = ChildProcess::Start({.name = name,
                                      .argv = plan_.trainer_argv(servers_.addresses()),
                                      .log_path = absl::StrCat(plan_.logs, "/", name, ".log"),
                                      .pipe_output = rank == 0,
                                      .environment = VariablesOfRank(rank, plan_.num_ranks, port)});
    if (!child.ok()) return Fail(child.status());
    if (rank == 0) {
      trainer_ = *std::move(child);
    } else {
      other_ranks_.push_back(*std::move(child));
    }
  }
  return true;
}

void Launcher::Watch() {
  bool told = false;
  double kill_at = 0;
  while (true) {
    pollfd output = {.fd = trainer_->output().fd(), .events = POLLIN, .revents = 0};
    poll(&output, 1, static_cast<int>(kTick.count()));
    if ((output.revents & POLLIN) == 0) stop_->WaitFor(std::chrono::milliseconds(10));
    const std::optional<ChildEnd> end = trainer_->Poll();
    Relay();
    if (end.has_value()) {
      if (end->exit_code == 0) return;
      exit_code_ =
          SpeaksForItself(*end) ? static_cast<ExitCode>(end->exit_code) : ExitCode::kChildDied;
      // The trainer was passed SIGTERM, whatever came here.
      if (told && IsStop(exit_code_)) exit_code_ = ExitCodeOfSignal(stop_->signal());
      if (!told) Explain(*trainer_, *end);
      return;
    }
    // A server nobody stopped ends the run; TearDown lets the trainer save first.
    if (!told && (ServerEnded() || RankEnded())) return;
    if (!told && stop_->Requested()) {
      live_->Print("stopping: the trainer saves first (a second Ctrl-C ends everything at once)");
      trainer_->Signal(SIGTERM);
      exit_code_ = ExitCodeOfSignal(stop_->signal());
      told = true;
      kill_at = MonotonicSeconds() + plan_.stop_seconds;
    }
    if (told && MonotonicSeconds() > kill_at) return;
  }
}

void Launcher::Relay() {
  for (const std::string& line : trainer_->output().Lines()) {
    if (view_.Take(line)) {
      live_->Print(view_.text());
    } else if (!view_.text().empty()) {
      live_->Update(view_.text());
    }
  }
}

bool Launcher::ServerEnded() {
  for (const auto& server : servers_.children()) {
    if (const std::optional<ChildEnd> end = server->Poll()) {
      Explain(*server, *end);
      // Before the trainer runs, a server that refuses its model or flags says so by its code.
      exit_code_ = trainer_ == nullptr && SpeaksForItself(*end)
                       ? static_cast<ExitCode>(end->exit_code)
                       : ExitCode::kChildDied;
      return true;
    }
  }
  return false;
}

// One that rank 0 told to end has its exit code, and rank 0, which says what there is to say, ends
// right after.
bool Launcher::RankEnded() {
  constexpr double kRankZeroFollows = 5;  // s
  for (const auto& rank : other_ranks_) {
    const std::optional<ChildEnd> end = rank->Poll();
    if (!end.has_value() || (end->exit_code == 0 && end->signal == 0)) continue;
    if (SpeaksForItself(*end) && end->exit_code != ToInt(ExitCode::kRankLost)) {
      if (rank_ended_at_ == 0) rank_ended_at_ = MonotonicSeconds();
      if (MonotonicSeconds() - rank_ended_at_ < kRankZeroFollows) continue;
    }
    Explain(*rank, *end);
    exit_code_ =
        SpeaksForItself(*end) ? static_cast<ExitCode>(end->exit_code) : ExitCode::kRankLost;
    return true;
  }
  return false;
}

void Launcher::Explain(const ChildProcess& child, const ChildEnd& end) {
  live_->Print(absl::StrCat("tandem: ", child.name(), " ended with ", end.ToString(),
                            "; its last lines (", child.log_path(), "):"));
  for (const std::string& line : LastLines(child.log_path(), kLogLinesShown, child.log_begin())) {
    live_->Print("  | " + line);
  }
}

void Launcher::TearDown() {
  if (trainer_ != nullptr) trainer_->Stop(plan_.stop_seconds);
  for (const auto& rank : other_ranks_) rank->Stop(exit_code_ == ExitCode::kOk ? 20 : 5);
  servers_.Stop(exit_code_ == ExitCode::kOk ? 20 : 5);
}

}  // namespace tandem::front
