#include "common/observe/history.h"

#include <unistd.h>

#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/log.h"
#include "common/base/status_macros.h"
#include "common/observe/tracer.h"

namespace tandem {

absl::StatusOr<std::unique_ptr<History>> History::Open(const std::string& directory,
                                                       const std::string& role) {
  TANDEM_RETURN_IF_ERROR(MakeDirectories(directory));
  const int64_t now = UnixNanoseconds();
  TANDEM_ASSIGN_OR_RETURN(auto file, AppendFile::Open(absl::StrCat(directory, "/", role, "-",
                                                                   getpid(), "-", now, ".jsonl")));
  auto history = std::unique_ptr<History>(new History(std::move(file)));
  history->Write({{"event", "opened"}, {"schema", 1}, {"role", role}, {"unix_ns", now}});
  return history;
}

void History::Write(const nlohmann::ordered_json& event) {
  const std::string line =
      event.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
  MutexLock lock(&mu_);
  const absl::Status written = file_->Append(line);
  if (written.ok() || std::exchange(failed_, true)) return;
  log::Error("events of the history are lost", {{"reason", written.ToString()}});
}

}  // namespace tandem
