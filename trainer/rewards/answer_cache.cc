#include "trainer/rewards/answer_cache.h"

#include <sqlite3.h>

#include "absl/strings/str_cat.h"
#include "common/base/log.h"
#include "common/base/status_macros.h"

namespace tandem::trainer {
namespace {

constexpr int kFormat = 1;  // user_version of the file
constexpr int kBusyMs = 10'000;
constexpr char kFindAnswer[] = "SELECT value FROM answers WHERE key = ?1";
constexpr char kStoreAnswer[] = "INSERT OR REPLACE INTO answers (key, value) VALUES (?1, ?2)";
constexpr char kFindSpending[] = "SELECT calls, tokens FROM spending WHERE name = ?1";
constexpr char kAddSpending[] =
    "INSERT INTO spending (name, calls, tokens) VALUES (?1, ?2, ?3) ON CONFLICT (name) DO UPDATE "
    "SET calls = calls + excluded.calls, tokens = tokens + excluded.tokens";

struct Finalise {
  void operator()(sqlite3_stmt* statement) const { sqlite3_finalize(statement); }
};
using Statement = std::unique_ptr<sqlite3_stmt, Finalise>;

Statement Prepare(sqlite3* file, const char* sql) {
  sqlite3_stmt* statement = nullptr;
  sqlite3_prepare_v2(file, sql, -1, &statement, nullptr);
  return Statement(statement);  // null: an error, which sqlite3_errmsg names
}

void Bind(const Statement& statement, int position, const std::string& text) {
  sqlite3_bind_text(statement.get(), position, text.data(), static_cast<int>(text.size()),
                    SQLITE_TRANSIENT);
}

absl::Status RunSql(sqlite3* file, const std::string& path, const char* sql) {
  if (sqlite3_exec(file, sql, nullptr, nullptr, nullptr) == SQLITE_OK) return absl::OkStatus();
  return Unavailable("reward.cache.file ", path, ": ", sqlite3_errmsg(file));
}

int FormatOf(sqlite3* file) {
  const Statement statement = Prepare(file, "PRAGMA user_version");
  if (statement == nullptr || sqlite3_step(statement.get()) != SQLITE_ROW) return -1;
  return sqlite3_column_int(statement.get(), 0);
}

}  // namespace

void BindOptions(OptionBinder& binder, AnswerCacheOptions& options) {
  binder.Integer("entries", &options.entries, {.min = 0, .max = 1e9}, "answers",
                 "of http, grpc, judge and, by its option, subprocess that are kept in memory, so "
                 "that the same completion is asked about once; 0: none");
  binder.Text("file", &options.file,
              "SQLite file that keeps them across runs, and what a judge has cost; empty: none");
}

absl::StatusOr<std::unique_ptr<AnswerCache>> AnswerCache::Open(const AnswerCacheOptions& options) {
  std::unique_ptr<AnswerCache> cache(new AnswerCache(options));
  if (!options.file.empty()) TANDEM_RETURN_IF_ERROR(cache->OpenFile());
  return cache;
}

absl::Status AnswerCache::OpenFile() {
  MutexLock lock(&mu_);
  if (sqlite3_open(options_.file.c_str(), &file_) != SQLITE_OK) {
    return Unavailable("reward.cache.file ", options_.file, ": ", sqlite3_errmsg(file_));
  }
  sqlite3_busy_timeout(file_, kBusyMs);  // another run may write to the same file
  TANDEM_RETURN_IF_ERROR(
      RunSql(file_, options_.file, "PRAGMA journal_mode = WAL; PRAGMA synchronous = NORMAL"));
  const int format = FormatOf(file_);
  if (format == kFormat) return absl::OkStatus();
  if (format != 0) {
    return InvalidArgument("reward.cache.file ", options_.file, " has format ", format,
                           ", and this version reads ", kFormat, ": name another file");
  }
  return RunSql(
      file_, options_.file,
      "BEGIN IMMEDIATE;"
      "CREATE TABLE IF NOT EXISTS answers (key TEXT PRIMARY KEY, value TEXT NOT NULL) "
      "WITHOUT ROWID;"
      "CREATE TABLE IF NOT EXISTS spending (name TEXT PRIMARY KEY, calls INTEGER NOT NULL, "
      "tokens INTEGER NOT NULL) WITHOUT ROWID;"
      "PRAGMA user_version = 1;"
      "COMMIT");
}

AnswerCache::~AnswerCache() {
  MutexLock lock(&mu_);
  sqlite3_close(file_);
}

void AnswerCache::WriteToFile(const char* sql, const std::vector<std::string>& values) {
  if (file_ == nullptr) return;
  const Statement statement = Prepare(file_, sql);
  for (size_t i = 0; statement != nullptr && i < values.size(); ++i) {
    Bind(statement, static_cast<int>(i) + 1, values[i]);
  }
  if (statement != nullptr && sqlite3_step(statement.get()) == SQLITE_DONE) return;
  if (std::exchange(failed_before_, true)) return;
  log::Warning("answers of reward services cannot be kept: a run that is resumed asks again",
               {{"file", options_.file}, {"reason", sqlite3_errmsg(file_)}});
}

void AnswerCache::Keep(const std::string& key, const ExternalAnswer& answer) {
  if (const auto known = by_key_.find(key); known != by_key_.end()) recent_.erase(known->second);
  recent_.emplace_front(key, answer);
  by_key_[key] = recent_.begin();
  if (std::ssize(recent_) <= options_.entries) return;
  by_key_.erase(recent_.back().first);
  recent_.pop_back();
}

std::optional<ExternalAnswer> AnswerCache::Find(const std::string& key, std::string_view text) {
  MutexLock lock(&mu_);
  if (const auto known = by_key_.find(key); known != by_key_.end()) {
    recent_.splice(recent_.begin(), recent_, known->second);
    return known->second->second;
  }
  if (file_ == nullptr) return std::nullopt;
  const Statement statement = Prepare(file_, kFindAnswer);
  if (statement == nullptr) return std::nullopt;
  Bind(statement, 1, key);
  if (sqlite3_step(statement.get()) != SQLITE_ROW) return std::nullopt;
  const auto* const json = reinterpret_cast<const char*>(sqlite3_column_text(statement.get(), 0));
  RewardAnswer answer = ParseAnswer(json == nullptr ? "" : json, options_.file, text);
  if (!answer.ok()) return std::nullopt;
  Keep(key, *answer);
  return *std::move(answer);
}

void AnswerCache::Store(const std::string& key, const ExternalAnswer& answer) {
  MutexLock lock(&mu_);
  Keep(key, answer);
  WriteToFile(kStoreAnswer, {key, AnswerJson(answer)});
}

Spending AnswerCache::FindSpending(const std::string& name) {
  MutexLock lock(&mu_);
  const Statement statement = file_ == nullptr ? Statement() : Prepare(file_, kFindSpending);
  if (statement == nullptr) return {};
  Bind(statement, 1, name);
  if (sqlite3_step(statement.get()) != SQLITE_ROW) return {};
  return {.calls = sqlite3_column_int64(statement.get(), 0),
          .tokens = sqlite3_column_int64(statement.get(), 1)};
}

void AnswerCache::AddSpending(const std::string& name, const Spending& more) {
  MutexLock lock(&mu_);
  WriteToFile(kAddSpending, {name, absl::StrCat(more.calls), absl::StrCat(more.tokens)});
}

}  // namespace tandem::trainer
