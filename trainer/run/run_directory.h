// RunDirectory: everything a run leaves, in the schema of docs/run_directory.md. Used by
// trainer.cc; `tandem report` reads only these files. Thread-compatible.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/files/file_system.h"
#include "trainer/experience/experience_buffer.h"
#include "trainer/experience/group_capture.h"
#include "trainer/metrics/metrics_line.h"
#include "trainer/run/tensorboard_writer.h"

namespace tandem::trainer {

enum class RunMode {
  kFresh,          // a new run
  kResume,         // goes on with the one that is there
  kResumeOrFresh,  // whichever of these two fits: for launchers that start a process again
  kClean,          // deletes the one that is there first
};

// Text of one token, for rollouts/.
using TokenText = std::function<std::string(int32_t)>;

class RunDirectory {
 public:
  // Opens OUT/NAME.
  //   ALREADY_EXISTS      the directory holds a run and mode is kFresh: names --resume and --clean;
  //                       or a process writes to it, and goes on for seconds
  //   NOT_FOUND           mode is kResume and no run is there
  //   INVALID_ARGUMENT    kClean, and what is there does not look like a run
  //   PERMISSION_DENIED, RESOURCE_EXHAUSTED, UNAVAILABLE  it cannot be written
  static absl::StatusOr<std::unique_ptr<RunDirectory>> Open(const std::string& out,
                                                            const std::string& name, RunMode mode);

  // `mode`, with kResumeOrFresh decided by what is at OUT/NAME now.
  static RunMode Decide(const std::string& out, const std::string& name, RunMode mode);

  const std::string& path() const { return path_; }
  std::string checkpoints() const { return path_ + "/checkpoints"; }

  // Drops what was written about steps after `step` (a crash came after them, before a checkpoint),
  // and sets the clock behind what is left. Before the first write of a resumed run.
  absl::Status CutAfter(int64_t step);

  struct Records {
    int64_t last_step = 0;          // of the train steps in metrics.jsonl
    bool saved_checkpoint = false;  // says events.jsonl
  };
  absl::StatusOr<Records> ReadRecords() const;

  absl::Status WriteText(const std::string& name, const std::string& text);  // a whole file
  absl::Status WriteMetrics(const MetricsLine& line);
  absl::Status WriteEvent(int64_t step, const std::string& kind, const std::string& message,
                          const JsonFields& fields = {});

  // The trained groups, then the dropped ones that were sampled, with their reason.
  absl::Status WriteRollouts(int64_t step, const StepExperience& experience,
                             const PerToken& proximal_logprobs, const TokenText& token_text);

  double ElapsedSeconds() const;  // since the run started, pauses between resumes left out

 private:
  explicit RunDirectory(std::string path) : path_(std::move(path)) {}
  absl::Status Lock();
  absl::Status OpenFiles();

  const std::string path_;
  double started_at_ = 0;                // monotonic
  std::unique_ptr<DirectoryLock> lock_;  // two writers would mix up their records
  std::unique_ptr<AppendFile> metrics_, events_;
  std::unique_ptr<TensorboardWriter> tensorboard_;
};

}  // namespace tandem::trainer
