#include "cli/run/restarts.h"

#include <algorithm>
#include <cmath>

#include "common/base/exit_codes.h"

namespace tandem::cli {

bool WorthRestart(const ChildEnd& end, bool is_server) {
  if (end.signal != 0) return true;
  if (end.exit_code == ToInt(ExitCode::kOk)) return is_server;
  return end.exit_code == ToInt(ExitCode::kInternal) || end.exit_code == ToInt(ExitCode::kRankLost);
}

std::optional<double> Restarts::NextDelay(const std::string& name) {
  int64_t& count = counts_[name];
  if (count >= limits_.most) {
    if (count == 0) counts_.erase(name);
    return std::nullopt;
  }
  return std::min(limits_.delay_seconds * std::exp2(static_cast<double>(count++)),
                  kMaxRestartDelaySeconds);
}

int64_t Restarts::count(const std::string& name) const {
  const auto found = counts_.find(name);
  return found == counts_.end() ? 0 : found->second;
}

}  // namespace tandem::cli
