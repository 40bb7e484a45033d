#include "cli/run/local_servers.h"

#include <signal.h>

#include <filesystem>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/status_macros.h"
#include "common/files/file_system.h"

namespace tandem::cli {

absl::Status LocalServers::Start(const std::string& logs, int64_t count, const Argv& argv) {
  TANDEM_RETURN_IF_ERROR(MakeDirectories(logs));
  logs_ = logs;
  for (int64_t i = 0; i < count; ++i) {
    const size_t server = children_.size();
    port_files_.push_back(absl::StrCat(logs, "/rollout_server_", server, ".port"));
    TANDEM_ASSIGN_OR_RETURN(children_.emplace_back(), StartOne(server, /*port=*/0, argv));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<ChildProcess>> LocalServers::StartOne(size_t server, int64_t port,
                                                                     const Argv& argv) const {
  std::error_code ignored;
  std::filesystem::remove(port_files_[server], ignored);  // of an earlier start
  return ChildProcess::Start({.name = absl::StrCat("rollout_server ", server),
                              .argv = argv(static_cast<int64_t>(server), port, port_files_[server]),
                              .log_path = absl::StrCat(logs_, "/rollout_server_", server, ".log")});
}

absl::Status LocalServers::StartAgain(size_t server, const Argv& argv) {
  int64_t port = 0;
  if (server < addresses_.size()) {
    const std::string& address = addresses_[server];
    TANDEM_CHECK(absl::SimpleAtoi(address.substr(address.rfind(':') + 1), &port));
  }
  TANDEM_ASSIGN_OR_RETURN(children_[server], StartOne(server, port, argv));
  return absl::OkStatus();
}

bool LocalServers::IsReady(size_t server) const {
  const auto port = ReadFile(port_files_[server]);
  return port.ok() && !absl::StripAsciiWhitespace(*port).empty();
}

bool LocalServers::Ready() {
  while (addresses_.size() < children_.size()) {
    const size_t server = addresses_.size();
    const auto port = ReadFile(port_files_[server]);
    if (!port.ok() || absl::StripAsciiWhitespace(*port).empty()) return false;
    addresses_.push_back(absl::StrCat("127.0.0.1:", absl::StripAsciiWhitespace(*port)));
  }
  return true;
}

void LocalServers::Stop(double grace_seconds) {
  for (const auto& child : children_) child->Signal(SIGTERM);
  for (const auto& child : children_) child->Stop(grace_seconds);
}

}  // namespace tandem::cli
