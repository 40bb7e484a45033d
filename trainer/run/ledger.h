// Ledger: what was asked for, trained and dropped in a run, group by group, in an SQLite file that
// other programs read while the run goes on (docs/dynamic_sampling.md has the tables). `tandem
// ledger` checks that it balances. Used by trainer.cc. Use from one thread.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/weight_version.h"
#include "common/sqlite/sqlite_file.h"
#include "trainer/experience/experience_buffer.h"

namespace tandem::trainer {

inline constexpr int kLedgerFormat = 1;
inline constexpr char kLedgerFile[] = "ledger.sqlite";

// What became of the groups that a train step took.
struct LedgerStep {
  const StepExperience* step = nullptr;
  Frontier frontier;        // after the step
  WeightVersion version;    // of the weights before it
  std::string skip_reason;  // not empty: it made no weights
};

class Ledger {
 public:
  // Opens the file in a run's directory, or makes it. Errors of SqliteFile::Open.
  static absl::StatusOr<std::unique_ptr<Ledger>> Open(const std::string& run_directory);

  // Forgets what came after `frontier`: a resumed run does it again.
  absl::Status CutAfter(const Frontier& frontier);

  // One transaction. UNAVAILABLE: it cannot be written.
  absl::Status Record(const LedgerStep& step);

 private:
  explicit Ledger(std::unique_ptr<SqliteFile> file) : file_(std::move(file)) {}
  absl::Status WriteRows(const LedgerStep& step);

  const std::unique_ptr<SqliteFile> file_;
};

}  // namespace tandem::trainer
