// AnswerCache: answers of external scorers by a digest of all that decides them, in memory and, by
// option, in an SQLite file, so that a run that is resumed need not pay for them again. Only
// successes are kept. Used by external_parts.cc.
#pragma once

#include <cstdint>
#include <list>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/mutex.h"
#include "common/options/options.h"
#include "common/sqlite/sqlite_file.h"
#include "trainer/rewards/external/reward_question.h"

namespace tandem::trainer {

struct AnswerCacheOptions {
  int64_t entries = 65536;  // in memory; 0: no cache at all
  std::string file;         // SQLite; empty: none
};
void BindOptions(OptionBinder& binder, AnswerCacheOptions& options);

// What a run has spent on a judge, which the file of the cache remembers.
struct Spending {
  int64_t calls = 0, tokens = 0;
};

// Thread-safe. Memory: `entries` answers and keys, some 200 bytes each without steps; the one that
// was used longest ago makes room. A file keeps all.
class AnswerCache {
 public:
  // Opens the file, or makes it, with a write-ahead log, so that a crash loses an answer at most.
  //   INVALID_ARGUMENT  a file that is no cache of this version
  //   UNAVAILABLE       it cannot be opened, read or written (SQLite's reason)
  static absl::StatusOr<std::unique_ptr<AnswerCache>> Open(const AnswerCacheOptions& options);
  AnswerCache(const AnswerCache&) = delete;
  AnswerCache& operator=(const AnswerCache&) = delete;

  // `text`: the completion that was judged, which steps of an answer from the file must fit.
  std::optional<ExternalAnswer> Find(const std::string& key, std::string_view text)
      ABSL_LOCKS_EXCLUDED(mu_);

  // An answer that cannot be written to the file stays in memory; the first such failure is logged.
  void Store(const std::string& key, const ExternalAnswer& answer) ABSL_LOCKS_EXCLUDED(mu_);

  // What was added under `name`, by other processes too; nothing without a file.
  Spending FindSpending(const std::string& name) ABSL_LOCKS_EXCLUDED(mu_);
  void AddSpending(const std::string& name, const Spending& more) ABSL_LOCKS_EXCLUDED(mu_);

 private:
  using Entry = std::pair<std::string, ExternalAnswer>;

  explicit AnswerCache(const AnswerCacheOptions& options) : options_(options) {}
  absl::Status OpenFile() ABSL_LOCKS_EXCLUDED(mu_);
  // Runs a statement that writes; the first failure is logged.
  void WriteToFile(const char* sql, const SqlRow& values) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  SqlRow FindInFile(const char* sql, const std::string& key) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Keep(const std::string& key, const ExternalAnswer& answer)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const AnswerCacheOptions options_;
  Mutex mu_;
  std::list<Entry> recent_ ABSL_GUARDED_BY(mu_);  // the one used last comes first
  std::unordered_map<std::string, std::list<Entry>::iterator> by_key_ ABSL_GUARDED_BY(mu_);
  std::unique_ptr<SqliteFile> file_ ABSL_GUARDED_BY(mu_);  // null: none
  bool failed_before_ ABSL_GUARDED_BY(mu_) = false;
};

}  // namespace tandem::trainer
