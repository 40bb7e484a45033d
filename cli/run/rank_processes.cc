#include "cli/run/rank_processes.h"

#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/base/clock.h"
#include "common/base/exit_codes.h"
#include "common/base/printable.h"
#include "common/base/status_macros.h"
#include "common/files/file_system.h"

namespace tandem::cli {
namespace {

constexpr int kTickMs = 50;
constexpr double kKillSeconds = 5;  // between SIGTERM after the grace period and SIGKILL
constexpr size_t kLogLinesShown = 8;
// ANSI foreground colours that are readable on black and on white.
constexpr int kColours[] = {36, 33, 35, 32, 34, 31};

void PrintLine(std::FILE* file, int rank, bool colour, const std::string& line) {
  const std::string prefix = absl::StrCat("[rank ", rank, "]");
  const std::string shown = Printable(line);  // the text of a rank may quote other processes
  if (colour) {
    std::fprintf(file, "\033[%dm%s\033[0m %s\n", kColours[rank % std::size(kColours)],
                 prefix.c_str(), shown.c_str());
  } else {
    std::fprintf(file, "%s %s\n", prefix.c_str(), shown.c_str());
  }
}

void Say(const std::string& line) { std::fprintf(stderr, "tandem ranks: %s\n", line.c_str()); }

}  // namespace

int ExitCodeOfRanks(const std::vector<RankEnd>& ends) {
  // Precedence, lowest number first: causes, lost ranks, ranks that were told to stop.
  const auto order = [](const RankEnd& end) {
    if (end.stopped) return 2;
    return end.end.exit_code == ToInt(ExitCode::kRankLost) ? 1 : 0;
  };
  const RankEnd* first = nullptr;
  for (const RankEnd& end : ends) {
    if (end.end.exit_code == 0) continue;
    if (first == nullptr || order(end) < order(*first)) first = &end;
  }
  return first == nullptr ? 0 : first->end.exit_code;
}

RankProcesses::RankProcesses(RanksPlan plan, const StopSignal* stop)
    : plan_(std::move(plan)), stop_(stop) {}

absl::Status RankProcesses::Start() {
  const bool to_files = !plan_.logs.empty();
  if (to_files) TANDEM_RETURN_IF_ERROR(MakeDirectories(plan_.logs));
  for (int local = 0; local < plan_.node.per_node; ++local) {
    const std::string name = absl::StrCat("rank ", plan_.node.rank(local));
    auto child = ChildProcess::Start(
        {.name = name,
         .argv = plan_.argv,
         .log_path =
             to_files ? absl::StrCat(plan_.logs, "/rank_", plan_.node.rank(local), ".log") : "",
         .pipe_output = !to_files,
         .pipe_errors = !to_files,
         .death_signal = SIGKILL,
         .environment = RankVariables(plan_.node, local)});
    if (!child.ok()) {
      ranks_.clear();
      return child.status();
    }
    ranks_.push_back(*std::move(child));
  }
  ended_.assign(ranks_.size(), false);
  return absl::OkStatus();
}

int RankProcesses::Wait() {
  std::vector<pollfd> pipes;
  for (const auto& rank : ranks_) {
    for (const int fd : {rank->output().fd(), rank->errors().fd()}) {
      if (fd >= 0) pipes.push_back({.fd = fd, .events = POLLIN, .revents = 0});
    }
  }
  while (ends_.size() < ranks_.size()) {
    poll(pipes.data(), pipes.size(), kTickMs);
    for (pollfd& pipe : pipes) {
      if ((pipe.revents & (POLLIN | POLLHUP)) == POLLHUP)
        pipe.fd = -1;  // closed; poll would return at once
    }
    for (size_t local = 0; local < ranks_.size(); ++local) Relay(local, /*last=*/false);
    TakeEnds();
    PassOnSignal();
    EndAfterGrace();
  }
  return ExitCodeOfRanks(ends_);
}

void RankProcesses::Relay(size_t local_rank, bool last) {
  ChildProcess& child = *ranks_[local_rank];
  const int rank = plan_.node.rank(static_cast<int>(local_rank));
  const auto relay = [&](LinePipe& pipe, std::FILE* file, bool colour) {
    for (const std::string& line : pipe.Lines()) PrintLine(file, rank, colour, line);
    const std::string rest = last ? pipe.Rest() : "";
    if (!rest.empty()) PrintLine(file, rank, colour, rest);
    std::fflush(file);
  };
  relay(child.output(), stdout, plan_.colour_output);
  relay(child.errors(), stderr, plan_.colour_errors);
}

void RankProcesses::TakeEnds() {
  for (size_t local = 0; local < ranks_.size(); ++local) {
    if (ended_[local]) continue;
    const std::optional<ChildEnd> end = ranks_[local]->Poll();
    if (!end.has_value()) continue;
    ended_[local] = true;
    ends_.push_back(
        {.rank = plan_.node.rank(static_cast<int>(local)), .end = *end, .stopped = stopping_});
    Relay(local, /*last=*/true);
    if (end->exit_code == 0) continue;
    Explain(ends_.back());
    if (grace_ends_ == 0 && !passed_on_) grace_ends_ = MonotonicSeconds() + plan_.grace_seconds;
  }
}

void RankProcesses::PassOnSignal() {
  if (passed_on_ || !stop_->Requested()) return;
  passed_on_ = true;
  for (const auto& rank : ranks_) rank->Signal(stop_->signal() == SIGINT ? SIGINT : SIGTERM);
}

void RankProcesses::EndAfterGrace() {
  if (grace_ends_ == 0 || stopping_ || MonotonicSeconds() < grace_ends_) return;
  stopping_ = true;
  Say(absl::StrCat("the others did not end within ", plan_.grace_seconds, " s: ending them"));
  for (const auto& rank : ranks_) rank->Signal(SIGTERM);
  const double kill_at = MonotonicSeconds() + kKillSeconds;
  for (const auto& rank : ranks_) rank->Stop(std::max(0.01, kill_at - MonotonicSeconds()));
}

void RankProcesses::Explain(const RankEnd& end) const {
  const size_t left = ranks_.size() - ends_.size();
  std::string line = absl::StrCat("rank ", end.rank, " ended with ", end.end.ToString());
  if (left > 0 && grace_ends_ == 0 && !passed_on_) {
    absl::StrAppend(&line, "; the others have ", plan_.grace_seconds, " s to end");
  }
  Say(line);
  if (plan_.logs.empty()) return;
  const ChildProcess& child = *ranks_[static_cast<size_t>(end.rank - plan_.node.rank(0))];
  for (const std::string& logged : LastLines(child.log_path(), kLogLinesShown, child.log_begin())) {
    PrintLine(stderr, end.rank, plan_.colour_errors, logged);
  }
}

absl::StatusOr<std::string> FindProgram(const std::string& name, const std::string& path,
                                        const std::string& beside) {
  if (name.find('/') != std::string::npos) return name;
  std::vector<std::string> folders = absl::StrSplit(path, ':', absl::SkipEmpty());
  folders.push_back(beside);
  for (const std::string& folder : folders) {
    const std::string candidate = absl::StrCat(folder, "/", name);
    if (access(candidate.c_str(), X_OK) == 0) return candidate;
  }
  return NotFound(name, ": no such program in PATH or beside tandem");
}

}  // namespace tandem::cli
