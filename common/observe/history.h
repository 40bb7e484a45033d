// History: a record of what one process did to groups and weight versions, as JSON lines
// (docs/run_directory.md). An independent program, tests/support/python/check_history.py, reads the
// files of a run's processes and checks the guarantees of docs/dev/guarantees.md on them.
//
// Used by the trainer's loop and the rollout server. If the file cannot be written, events are lost
// and the log says so once; nothing else is affected.
#pragma once

#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "common/base/mutex.h"
#include "common/files/file_system.h"

namespace tandem {

// Thread-safe; lines are in the order of the calls.
class History {
 public:
  // Makes `directory`, and in it a file for this process, ROLE-PID-TIME.jsonl.
  //   UNAVAILABLE, PERMISSION_DENIED  the directory or the file cannot be made
  static absl::StatusOr<std::unique_ptr<History>> Open(const std::string& directory,
                                                       const std::string& role);

  // Writes one line with one write(2), so that a process that is killed loses no line that it
  // wrote.
  void Write(const nlohmann::ordered_json& event) ABSL_LOCKS_EXCLUDED(mu_);

 private:
  explicit History(std::unique_ptr<AppendFile> file) : file_(std::move(file)) {}

  Mutex mu_;
  const std::unique_ptr<AppendFile> file_ ABSL_PT_GUARDED_BY(mu_);
  bool failed_ ABSL_GUARDED_BY(mu_) = false;
};

}  // namespace tandem
