#include "common/sqlite/sqlite_file.h"

#include <sqlite3.h>

#include <filesystem>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"

namespace tandem {
namespace {

constexpr int kBusyMs = 10'000;  // another process may write to the same file

struct Finalise {
  void operator()(sqlite3_stmt* statement) const { sqlite3_finalize(statement); }
};
using Statement = std::unique_ptr<sqlite3_stmt, Finalise>;

struct Bind {
  sqlite3_stmt* statement;
  int place;
  void operator()(std::monostate) const { sqlite3_bind_null(statement, place); }
  void operator()(int64_t value) const { sqlite3_bind_int64(statement, place, value); }
  void operator()(double value) const { sqlite3_bind_double(statement, place, value); }
  void operator()(const std::string& value) const {
    sqlite3_bind_text(statement, place, value.data(), static_cast<int>(value.size()),
                      SQLITE_TRANSIENT);
  }
};

SqlValue Column(sqlite3_stmt* statement, int column) {
  switch (sqlite3_column_type(statement, column)) {
    case SQLITE_INTEGER:
      return int64_t{sqlite3_column_int64(statement, column)};
    case SQLITE_FLOAT:
      return sqlite3_column_double(statement, column);
    case SQLITE_NULL:
      return std::monostate{};
    default:
      return std::string(reinterpret_cast<const char*>(sqlite3_column_text(statement, column)),
                         static_cast<size_t>(sqlite3_column_bytes(statement, column)));
  }
}

}  // namespace

absl::StatusOr<std::unique_ptr<SqliteFile>> SqliteFile::Open(const std::string& path, int format,
                                                             const std::string& create) {
  sqlite3* file = nullptr;
  const int result = sqlite3_open(path.c_str(), &file);
  std::unique_ptr<SqliteFile> opened(new SqliteFile(path, file));
  if (result != SQLITE_OK) return opened->Failure();
  sqlite3_busy_timeout(file, kBusyMs);
  TANDEM_RETURN_IF_ERROR(opened->RunAll("PRAGMA journal_mode = WAL; PRAGMA synchronous = NORMAL"));
  TANDEM_RETURN_IF_ERROR(opened->CheckFormat(format, create));
  return opened;
}

absl::StatusOr<std::unique_ptr<SqliteFile>> SqliteFile::OpenToRead(const std::string& path,
                                                                   int format) {
  std::error_code ignored;
  if (!std::filesystem::exists(path, ignored)) return NotFound(path, " is not there");
  sqlite3* file = nullptr;
  const int result = sqlite3_open_v2(path.c_str(), &file, SQLITE_OPEN_READONLY, nullptr);
  std::unique_ptr<SqliteFile> opened(new SqliteFile(path, file));
  if (result != SQLITE_OK) return opened->Failure();
  sqlite3_busy_timeout(file, kBusyMs);
  TANDEM_RETURN_IF_ERROR(opened->CheckFormat(format, ""));
  return opened;
}

SqliteFile::~SqliteFile() { sqlite3_close(file_); }

absl::Status SqliteFile::CheckFormat(int format, const std::string& create) {
  TANDEM_ASSIGN_OR_RETURN(const std::vector<SqlRow> rows, Run("PRAGMA user_version"));
  const int64_t found = std::get<int64_t>(rows[0][0]);
  if (found == format) return absl::OkStatus();
  if (found != 0 || create.empty()) {
    return InvalidArgument(path_, " has format ", found, ", and this version reads ", format,
                           ": name another file");
  }
  return RunAll(
      absl::StrCat("BEGIN IMMEDIATE;", create, ";PRAGMA user_version = ", format, ";COMMIT"));
}

absl::Status SqliteFile::Failure() const {
  const std::string why = sqlite3_errmsg(file_);
  if (sqlite3_errcode(file_) == SQLITE_NOTADB) return InvalidArgument(path_, ": ", why);
  return Unavailable(path_, ": ", why);
}

absl::Status SqliteFile::RunAll(const std::string& sql) {
  if (sqlite3_exec(file_, sql.c_str(), nullptr, nullptr, nullptr) == SQLITE_OK) {
    return absl::OkStatus();
  }
  return Failure();
}

absl::StatusOr<std::vector<SqlRow>> SqliteFile::Run(const std::string& sql, const SqlRow& values) {
  sqlite3_stmt* prepared = nullptr;
  if (sqlite3_prepare_v2(file_, sql.c_str(), -1, &prepared, nullptr) != SQLITE_OK) {
    return Failure();
  }
  const Statement statement(prepared);
  for (size_t i = 0; i < values.size(); ++i) {
    std::visit(Bind{prepared, static_cast<int>(i) + 1}, values[i]);
  }
  std::vector<SqlRow> rows;
  int result = SQLITE_ROW;
  while ((result = sqlite3_step(prepared)) == SQLITE_ROW) {
    SqlRow& row = rows.emplace_back();
    for (int column = 0; column < sqlite3_column_count(prepared); ++column) {
      row.push_back(Column(prepared, column));
    }
  }
  if (result != SQLITE_DONE) return Failure();
  return rows;
}

}  // namespace tandem
