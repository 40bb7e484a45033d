#include "trainer/rewards/answer_cache.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/log.h"
#include "common/base/status_macros.h"

namespace tandem::trainer {
namespace {

constexpr int kFormat = 1;  // user_version of the file
constexpr char kCreate[] =
    "CREATE TABLE answers (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;"
    "CREATE TABLE spending (name TEXT PRIMARY KEY, calls INTEGER NOT NULL, "
    "tokens INTEGER NOT NULL) WITHOUT ROWID";
constexpr char kFindAnswer[] = "SELECT value FROM answers WHERE key = ?1";
constexpr char kStoreAnswer[] = "INSERT OR REPLACE INTO answers (key, value) VALUES (?1, ?2)";
constexpr char kFindSpending[] = "SELECT calls, tokens FROM spending WHERE name = ?1";
constexpr char kAddSpending[] =
    "INSERT INTO spending (name, calls, tokens) VALUES (?1, ?2, ?3) ON CONFLICT (name) DO UPDATE "
    "SET calls = calls + excluded.calls, tokens = tokens + excluded.tokens";

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
  auto file = SqliteFile::Open(options_.file, kFormat, kCreate);
  if (!file.ok()) {
    return absl::Status(file.status().code(),
                        absl::StrCat("reward.cache.file ", file.status().message()));
  }
  file_ = *std::move(file);
  return absl::OkStatus();
}

void AnswerCache::WriteToFile(const char* sql, const SqlRow& values) {
  if (file_ == nullptr) return;
  const absl::Status written = file_->Run(sql, values).status();
  if (written.ok() || std::exchange(failed_before_, true)) return;
  log::Warning("answers of reward services cannot be kept: a run that is resumed asks again",
               {{"file", options_.file}, {"reason", std::string(written.message())}});
}

// The first row that a statement finds; empty without a file, or where it finds none.
SqlRow AnswerCache::FindInFile(const char* sql, const std::string& key) {
  if (file_ == nullptr) return {};
  const auto rows = file_->Run(sql, {key});
  return rows.ok() && !rows->empty() ? rows->front() : SqlRow();
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
  const SqlRow row = FindInFile(kFindAnswer, key);
  if (row.empty()) return std::nullopt;
  RewardAnswer answer = ParseAnswer(std::get<std::string>(row[0]), options_.file, text);
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
  const SqlRow row = FindInFile(kFindSpending, name);
  if (row.empty()) return {};
  return {.calls = std::get<int64_t>(row[0]), .tokens = std::get<int64_t>(row[1])};
}

void AnswerCache::AddSpending(const std::string& name, const Spending& more) {
  MutexLock lock(&mu_);
  WriteToFile(kAddSpending, {name, more.calls, more.tokens});
}

}  // namespace tandem::trainer
