#include "trainer/run/ledger.h"

#include <algorithm>
#include <optional>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "trainer/experience/drawn_tokens.h"

namespace tandem::trainer {
namespace {

using experience::v1::ScoredCompletion;
using experience::v1::ScoredGroup;

// docs/dynamic_sampling.md explains the columns.
constexpr char kCreate[] =
    "CREATE TABLE steps (step INTEGER PRIMARY KEY, version INTEGER, first_group INTEGER NOT NULL,"
    " next_group INTEGER NOT NULL, trained INTEGER NOT NULL, dropped INTEGER NOT NULL,"
    " completions INTEGER NOT NULL, trained_completions INTEGER NOT NULL, tokens INTEGER NOT NULL,"
    " trained_tokens INTEGER NOT NULL, skip_reason TEXT);"
    "CREATE TABLE groups (group_id INTEGER PRIMARY KEY, step INTEGER NOT NULL,"
    " fate TEXT NOT NULL, reason TEXT, asked INTEGER NOT NULL, completions INTEGER NOT NULL,"
    " trained_completions INTEGER NOT NULL, tokens INTEGER NOT NULL,"
    " trained_tokens INTEGER NOT NULL, correct INTEGER NOT NULL, reward_mean REAL,"
    " prompt INTEGER, epoch INTEGER, staleness INTEGER, server TEXT);"
    "CREATE INDEX groups_by_step ON groups (step)";
constexpr char kAddGroup[] =
    "INSERT INTO groups VALUES (?1,?2,?3,?4,?5,?6,?7,?8,?9,?10,?11,?12,?13,?14,?15)";
constexpr char kAddStep[] = "INSERT INTO steps VALUES (?1,?2,?3,?4,?5,?6,?7,?8,?9,?10,?11)";

// What a group brought, of which a step is the sum.
struct Sums {
  int64_t completions = 0, trained_completions = 0, tokens = 0, trained_tokens = 0;

  void Add(const Sums& other) {
    completions += other.completions;
    trained_completions += other.trained_completions;
    tokens += other.tokens;
    trained_tokens += other.trained_tokens;
  }
};

Sums SumsOf(const ScoredGroup& group, bool is_trained) {
  Sums sums;
  for (const ScoredCompletion& member : group.completions()) {
    const bool counts = is_trained && !member.masked();
    ++sums.completions;
    sums.trained_completions += counts;
    sums.tokens += NumDrawn(member.completion());
    sums.trained_tokens += counts ? NumDrawn(member.completion()) : 0;
  }
  return sums;
}

SqlValue MeanReward(const ScoredGroup& group) {
  double sum = 0;
  for (const ScoredCompletion& member : group.completions()) sum += member.reward();
  return sum / std::max(1, group.completions_size());
}

// A row of `groups`. `group` is null where none came.
struct GroupRow {
  int64_t id = 0, asked = 0;
  const ScoredGroup* group = nullptr;
  std::string fate, reason;
};

SqlRow ValuesOf(const GroupRow& row, int64_t step, WeightVersion version, Sums* sums) {
  SqlRow values = {row.id, step, row.fate};
  values.push_back(row.reason.empty() ? SqlValue() : SqlValue(row.reason));
  values.push_back(row.asked);
  if (row.group == nullptr) {
    for (int i = 0; i < 5; ++i) values.push_back(int64_t{0});
    values.resize(15);
    return values;
  }
  const ScoredGroup& group = *row.group;
  *sums = SumsOf(group, row.fate == "trained");
  const int64_t correct = std::ranges::count_if(group.completions(), &ScoredCompletion::correct);
  values.insert(values.end(),
                {sums->completions, sums->trained_completions, sums->tokens, sums->trained_tokens,
                 correct, MeanReward(group), int64_t{group.prompt().index()},
                 int64_t{group.prompt().epoch()}, Staleness(group, version), group.server()});
  return values;
}

// In the order of their ids.
std::vector<GroupRow> RowsOf(const LedgerStep& step) {
  std::vector<GroupRow> rows;
  const bool skipped = !step.skip_reason.empty();
  for (const ScoredGroup& group : step.step->groups) {
    rows.push_back({.id = group.group_id(),
                    .asked = group.completions_size(),
                    .group = &group,
                    .fate = skipped ? "skipped" : "trained"});
  }
  for (const DroppedGroup& dropped : step.step->dropped) {
    rows.push_back({.id = dropped.group_id,
                    .asked = dropped.num_asked,
                    .group = dropped.group.has_value() ? &*dropped.group : nullptr,
                    .fate = "dropped",
                    .reason = dropped.reason});
  }
  std::ranges::sort(rows, {}, &GroupRow::id);
  return rows;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Ledger>> Ledger::Open(const std::string& run_directory) {
  TANDEM_ASSIGN_OR_RETURN(auto file, SqliteFile::Open(absl::StrCat(run_directory, "/", kLedgerFile),
                                                      kLedgerFormat, kCreate));
  return std::unique_ptr<Ledger>(new Ledger(std::move(file)));
}

absl::Status Ledger::CutAfter(const Frontier& frontier) {
  TANDEM_RETURN_IF_ERROR(
      file_->Run("DELETE FROM groups WHERE group_id >= ?1", {frontier.group}).status());
  return file_->Run("DELETE FROM steps WHERE step > ?1", {frontier.step}).status();
}

absl::Status Ledger::WriteRows(const LedgerStep& step) {
  Sums total;
  const std::vector<GroupRow> rows = RowsOf(step);
  for (const GroupRow& row : rows) {
    Sums sums;
    const SqlRow values = ValuesOf(row, step.frontier.step, step.version, &sums);
    TANDEM_RETURN_IF_ERROR(file_->Run(kAddGroup, values).status());
    total.Add(sums);
  }
  const bool skipped = !step.skip_reason.empty();
  const auto count = static_cast<int64_t>(rows.size());
  const auto dropped = static_cast<int64_t>(step.step->dropped.size());
  return file_
      ->Run(kAddStep,
            {step.frontier.step, skipped ? SqlValue() : SqlValue(step.version.Next().value),
             step.frontier.group - count, step.frontier.group, skipped ? 0 : count - dropped,
             dropped, total.completions, total.trained_completions, total.tokens,
             total.trained_tokens, skipped ? SqlValue(step.skip_reason) : SqlValue()})
      .status();
}

absl::Status Ledger::Record(const LedgerStep& step) {
  TANDEM_RETURN_IF_ERROR(file_->Run("BEGIN IMMEDIATE").status());
  const absl::Status written = WriteRows(step);
  if (!written.ok()) {
    file_->Run("ROLLBACK").IgnoreError();
    return written;
  }
  return file_->Run("COMMIT").status();
}

}  // namespace tandem::trainer
