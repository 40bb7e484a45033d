// SubprocessReward: a program of the user that scores completions, one JSON line in, one out:
//   -> {"id":7,"prompt":"..","completion":"..","answer":"..","source":{..},"truncated":false}
//   <- {"id":7,"reward":0.5}        or  {"id":7,"error":"why not"}
// Started on first use, its stderr is the trainer's. A crash, a time-out, a line that is not such
// an answer, or a reward that is not finite restarts it and asks once more; then the completion
// fails. Used by rewards.cc. Thread-compatible.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/options/options.h"

namespace tandem::trainer {

struct SubprocessRewardOptions {
  std::vector<std::string> command;  // program and arguments; no shell
  double timeout_seconds = 10;       // per completion
};
void BindOptions(OptionBinder& binder, SubprocessRewardOptions& options);

class SubprocessReward {
 public:
  explicit SubprocessReward(const SubprocessRewardOptions& options);
  ~SubprocessReward();  // ends the program
  SubprocessReward(const SubprocessReward&) = delete;
  SubprocessReward& operator=(const SubprocessReward&) = delete;

  // `request_json` is an object without "id", on one line.
  //   UNAVAILABLE        the program cannot be started, or ended
  //   DEADLINE_EXCEEDED  no answer in time
  //   INVALID_ARGUMENT   not a JSON object with this id and a finite "reward"; or its own "error"
  absl::StatusOr<double> Score(const std::string& request_json);

 private:
  absl::Status Start();
  void Stop();
  absl::StatusOr<double> Ask(const std::string& request_json);
  absl::Status WriteLine(const std::string& line, double deadline);
  absl::StatusOr<std::string> ReadLine(double deadline);

  const SubprocessRewardOptions options_;
  pid_t pid_ = -1;
  int to_child_ = -1, from_child_ = -1;
  std::string unread_;
  int64_t next_id_ = 0;
};

}  // namespace tandem::trainer
