#include "cli/run/local_trainer.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "cli/run/node_ranks.h"
#include "common/base/clock.h"

namespace tandem::cli {
namespace {

// A line of metrics has a number for each that an environment or a reward tells.
constexpr size_t kLongestProgressLine = 16 << 20;  // bytes

// No variables for a trainer with one rank.
std::vector<std::string> VariablesOfRank(int64_t rank, int64_t num_ranks, int port) {
  if (num_ranks == 1) return {};
  return RankVariables(
      {.per_node = static_cast<int>(num_ranks), .master_port = port, .launch_id = "tandem"},
      static_cast<int>(rank));
}

}  // namespace

bool SpeaksForItself(const ChildEnd& end) {
  return end.signal == 0 && ((end.exit_code >= ToInt(ExitCode::kInternal) &&
                              end.exit_code <= ToInt(ExitCode::kRankLost)) ||
                             IsStop(static_cast<ExitCode>(end.exit_code)));
}

absl::Status LocalTrainer::Start(const std::string& logs, int64_t num_ranks,
                                 const std::vector<std::string>& argv) {
  ranks_.clear();
  rank_ended_at_ = 0;
  const int port = num_ranks == 1 ? 0 : FreePort();
  for (int64_t rank = 0; rank < num_ranks; ++rank) {
    const std::string name = rank == 0 ? "trainer" : absl::StrCat("trainer_", rank);
    auto child = ChildProcess::Start({.name = name,
                                      .argv = argv,
                                      .log_path = absl::StrCat(logs, "/", name, ".log"),
                                      .pipe_output = rank == 0,
                                      .longest_line = kLongestProgressLine,
                                      .environment = VariablesOfRank(rank, num_ranks, port)});
    if (!child.ok()) {
      ranks_.clear();
      return child.status();
    }
    ranks_.push_back(*std::move(child));
  }
  return absl::OkStatus();
}

std::optional<TrainerEnd> LocalTrainer::Poll() {
  // A rank that rank 0 told to end has the exit code of rank 0, which logs the reason and ends
  // right after it.
  constexpr double kRankZeroFollows = 5;  // s
  if (!running()) return std::nullopt;
  if (const std::optional<ChildEnd> end = ranks_.front()->Poll()) {
    ExitCode code = ExitCode::kOk;
    if (end->exit_code != 0) {
      code = SpeaksForItself(*end) ? static_cast<ExitCode>(end->exit_code) : ExitCode::kChildDied;
    }
    return TrainerEnd{ranks_.front().get(), *end, code};
  }
  for (size_t i = 1; i < ranks_.size(); ++i) {
    const std::optional<ChildEnd> end = ranks_[i]->Poll();
    if (!end.has_value() || (end->exit_code == 0 && end->signal == 0)) continue;
    if (SpeaksForItself(*end) && end->exit_code != ToInt(ExitCode::kRankLost)) {
      if (rank_ended_at_ == 0) rank_ended_at_ = MonotonicSeconds();
      if (MonotonicSeconds() - rank_ended_at_ < kRankZeroFollows) continue;
    }
    return TrainerEnd{
        ranks_[i].get(), *end,
        SpeaksForItself(*end) ? static_cast<ExitCode>(end->exit_code) : ExitCode::kRankLost};
  }
  return std::nullopt;
}

void LocalTrainer::Signal(int signal) {
  if (running()) ranks_.front()->Signal(signal);
}

void LocalTrainer::Stop(double seconds, double others_seconds) {
  for (size_t i = 0; i < ranks_.size(); ++i) ranks_[i]->Stop(i == 0 ? seconds : others_seconds);
  ranks_.clear();
}

}  // namespace tandem::cli
