// SqliteFile: an SQLite database with a write-ahead log, so that readers never wait and a process
// that is killed loses no finished transaction. SQLite is not visible in this header. Used by
// answer_cache.h and ledger.h.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

struct sqlite3;

namespace tandem {

// NULL, INTEGER, REAL or TEXT.
using SqlValue = std::variant<std::monostate, int64_t, double, std::string>;
using SqlRow = std::vector<SqlValue>;

// Thread-compatible.
class SqliteFile {
 public:
  // Opens the file, or makes it by the statements `create`. Its format is SQLite's user_version.
  //   INVALID_ARGUMENT  a file of another format, or none of SQLite's
  //   UNAVAILABLE       it cannot be opened, read or written (SQLite's reason)
  static absl::StatusOr<std::unique_ptr<SqliteFile>> Open(const std::string& path, int format,
                                                          const std::string& create);
  // Opens a file that is there, to read it.
  //   NOT_FOUND  it is not there; errors as Open
  static absl::StatusOr<std::unique_ptr<SqliteFile>> OpenToRead(const std::string& path,
                                                                int format);
  ~SqliteFile();
  SqliteFile(const SqliteFile&) = delete;
  SqliteFile& operator=(const SqliteFile&) = delete;

  // Runs one statement with values for ?1, ?2 and so on, and returns its rows.
  //   UNAVAILABLE  SQLite's reason
  absl::StatusOr<std::vector<SqlRow>> Run(const std::string& sql, const SqlRow& values = {});

 private:
  SqliteFile(std::string path, sqlite3* file) : path_(std::move(path)), file_(file) {}
  absl::Status CheckFormat(int format, const std::string& create);
  absl::Status RunAll(const std::string& sql);  // several statements
  absl::Status Failure() const;

  const std::string path_;
  sqlite3* const file_;
};

}  // namespace tandem
