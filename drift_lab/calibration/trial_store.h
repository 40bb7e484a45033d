// TrialStore: finished trials in a file of JSON lines, so that an interrupted calibration continues
// where it was. The first line has the format, and the subject's seed and shape; a file with
// another first line is refused, so that trials of different studies are never mixed. Thread-safe.
#pragma once

#include <map>
#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/mutex.h"
#include "common/files/file_system.h"
#include "drift_lab/calibration/trial.h"

namespace tandem::drift {

// To be raised whenever the same trial gives other numbers.
inline constexpr int kTrialFormat = 1;

struct TrialStudy {
  uint64_t seed = 1;  // of the subject's weights
  CaptureShape shape;
};

class TrialStore {
 public:
  // Creates the file, or reads its trials. A last line that an interruption cut short is dropped.
  //   INVALID_ARGUMENT  "PATH:LINE: ...": a line is not a trial, or the trials are of another study
  //                     or format
  //   any error of file_system.h
  static absl::StatusOr<std::unique_ptr<TrialStore>> Open(const std::string& path,
                                                          const TrialStudy& study);

  bool Has(const PlannedTrial& trial) const;
  absl::Status Add(const PlannedTrial& trial, const TrialResult& result);
  std::map<PlannedTrial, TrialResult> All() const;

 private:
  explicit TrialStore(std::string path) : path_(std::move(path)) {}
  absl::Status Read(const std::string& text, const std::string& header);

  const std::string path_;
  mutable Mutex mu_;
  std::unique_ptr<AppendFile> file_ ABSL_GUARDED_BY(mu_);
  std::map<PlannedTrial, TrialResult> trials_ ABSL_GUARDED_BY(mu_);
};

}  // namespace tandem::drift
