#include "deploy/tandem/local_servers.h"

#include <signal.h>

#include <filesystem>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "common/base/file_system.h"
#include "common/base/status_macros.h"

namespace tandem::front {

absl::Status LocalServers::Start(const std::string& logs, int64_t count, const Argv& argv) {
  TANDEM_RETURN_IF_ERROR(MakeDirectories(logs));
  for (int64_t i = 0; i < count; ++i) {
    const auto number = static_cast<int64_t>(children_.size());
    const std::string base = absl::StrCat(logs, "/rollout_server_", number);
    port_files_.push_back(base + ".port");
    std::error_code ignored;
    std::filesystem::remove(port_files_.back(), ignored);  // of an earlier start
    TANDEM_ASSIGN_OR_RETURN(auto child,
                            ChildProcess::Start({.name = absl::StrCat("rollout_server ", number),
                                                 .argv = argv(number, port_files_.back()),
                                                 .log_path = base + ".log"}));
    children_.push_back(std::move(child));
  }
  return absl::OkStatus();
}

bool LocalServers::Ready() {
  while (addresses_.size() < children_.size()) {
    const auto port = ReadFile(port_files_[addresses_.size()]);
    if (!port.ok() || absl::StripAsciiWhitespace(*port).empty()) return false;
    addresses_.push_back(absl::StrCat("127.0.0.1:", absl::StripAsciiWhitespace(*port)));
  }
  return true;
}

void LocalServers::Stop(double grace_seconds) {
  for (const auto& child : children_) child->Signal(SIGTERM);
  for (const auto& child : children_) child->Stop(grace_seconds);
}

}  // namespace tandem::front
