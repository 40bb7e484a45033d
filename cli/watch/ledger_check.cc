#include "cli/watch/ledger_check.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/files/file_system.h"
#include "common/sqlite/sqlite_file.h"
#include "nlohmann/json.hpp"
#include "trainer/run/ledger.h"

namespace tandem::cli {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

// Tokens of a completion of rollouts/, without those that were given between two turns.
int64_t NumSampled(const json& completion) {
  int64_t tokens = std::ssize(completion.value("token_ids", json::array()));
  for (const json& segment : completion.value("segments", json::array())) {
    if (segment.at(0) == "given") tokens -= segment.at(1).get<int64_t>();
  }
  return tokens;
}

struct Sums {
  int64_t trained = 0, dropped = 0, completions = 0, trained_completions = 0, tokens = 0,
          trained_tokens = 0;
  friend bool operator==(const Sums&, const Sums&) = default;
};

struct Group {
  int64_t id = 0, step = 0;
  std::string fate, reason;
  int64_t asked = 0;
  Sums sums;
};

struct Step {
  int64_t number = 0;
  int64_t version = 0;  // 0: skipped
  int64_t first_group = 0, next_group = 0;
  Sums sums;
};

int64_t Int(const SqlValue& value) {
  const int64_t* const number = std::get_if<int64_t>(&value);
  return number == nullptr ? 0 : *number;
}

std::string Text(const SqlValue& value) {
  const std::string* const text = std::get_if<std::string>(&value);
  return text == nullptr ? "" : *text;
}

struct Tables {
  std::vector<Step> steps;    // by number
  std::vector<Group> groups;  // by id
};

absl::StatusOr<Tables> ReadTables(const std::string& path) {
  TANDEM_ASSIGN_OR_RETURN(const auto file, SqliteFile::OpenToRead(path, trainer::kLedgerFormat));
  Tables tables;
  TANDEM_RETURN_IF_ERROR(file->Run("BEGIN").status());  // both tables as of one moment
  TANDEM_ASSIGN_OR_RETURN(
      const auto steps,
      file->Run("SELECT step, version, first_group, next_group, trained, dropped, completions, "
                "trained_completions, tokens, trained_tokens FROM steps ORDER BY step"));
  for (const SqlRow& row : steps) {
    tables.steps.push_back(
        {Int(row[0]),
         Int(row[1]),
         Int(row[2]),
         Int(row[3]),
         {Int(row[4]), Int(row[5]), Int(row[6]), Int(row[7]), Int(row[8]), Int(row[9])}});
  }
  TANDEM_ASSIGN_OR_RETURN(
      const auto groups,
      file->Run("SELECT group_id, step, fate, reason, asked, completions, trained_completions, "
                "tokens, trained_tokens FROM groups ORDER BY group_id"));
  for (const SqlRow& row : groups) {
    const std::string fate = Text(row[2]);
    tables.groups.push_back({Int(row[0]),
                             Int(row[1]),
                             fate,
                             Text(row[3]),
                             Int(row[4]),
                             {fate == "trained", fate == "dropped", Int(row[5]), Int(row[6]),
                              Int(row[7]), Int(row[8])}});
  }
  return tables;
}

// Collects sentences about one run.
class Checker {
 public:
  Checker(std::string run, Tables tables) : run_(std::move(run)), tables_(std::move(tables)) {}

  LedgerReport Check() {
    CheckSteps();
    CheckGroups();
    CheckSums();
    CheckMetrics();
    CheckRollouts();
    CheckCheckpoints();
    AddTotals();
    return std::move(report_);
  }

 private:
  template <typename... Parts>
  void Wrong(const Parts&... parts) {
    report_.problems.push_back(absl::StrCat(parts...));
  }

  void CheckSteps() {
    int64_t number = 0, version = 0, next_group = 0;
    for (const Step& step : tables_.steps) {
      if (step.number != ++number) {
        Wrong("step ", step.number, " comes where step ", number, " is due");
        number = step.number;
      }
      if (step.first_group != next_group || step.next_group < step.first_group) {
        Wrong("step ", step.number, " took the groups ", step.first_group, " to ",
              step.next_group - 1, ", and ", next_group, " was next");
      }
      next_group = step.next_group;
      if (step.version != 0 && step.version != ++version) {
        Wrong("step ", step.number, " made version ", step.version, ", and ", version, " was next");
        version = step.version;
      }
    }
  }

  const Step* StepOf(int64_t group) const {
    const auto step = std::ranges::upper_bound(tables_.steps, group, {}, &Step::next_group);
    return step == tables_.steps.end() || step->first_group > group ? nullptr : &*step;
  }

  void CheckGroups() {
    int64_t next = 0;
    for (const Group& group : tables_.groups) {
      for (; next < group.id; ++next) Wrong("nothing became of group ", next);
      next = group.id + 1;
      const Step* const step = StepOf(group.id);
      if (step == nullptr || step->number != group.step) {
        Wrong("group ", group.id, " is of step ", group.step, ", which did not take it");
        continue;
      }
      const bool skipped = step->version == 0;
      if (group.fate != "dropped" && group.fate != (skipped ? "skipped" : "trained")) {
        Wrong("group ", group.id, " is ", group.fate, ", and step ", group.step, " was ",
              skipped ? "skipped" : "not skipped");
      }
      if (group.fate == "dropped" && group.reason.empty()) {
        Wrong("group ", group.id, " was dropped without a reason");
      }
      if ((group.fate == "trained") != (group.sums.trained_completions > 0)) {
        Wrong("group ", group.id, " is ", group.fate, " with ", group.sums.trained_completions,
              " trained completions");
      }
      if (group.sums.completions > group.asked) {
        Wrong("group ", group.id, " has ", group.sums.completions, " completions; ", group.asked,
              " were asked for");
      }
    }
    const int64_t end = tables_.steps.empty() ? 0 : tables_.steps.back().next_group;
    for (; next < end; ++next) Wrong("nothing became of group ", next);
  }

  void CheckSums() {
    std::map<int64_t, Sums> of_steps;
    for (const Group& group : tables_.groups) {
      Sums& sums = of_steps[group.step];
      sums.trained += group.sums.trained;
      sums.dropped += group.sums.dropped;
      sums.completions += group.sums.completions;
      sums.trained_completions += group.sums.trained_completions;
      sums.tokens += group.sums.tokens;
      sums.trained_tokens += group.sums.trained_tokens;
    }
    for (const Step& step : tables_.steps) {
      if (of_steps[step.number] == step.sums) continue;
      const Sums& sums = of_steps[step.number];
      Wrong("step ", step.number, " says ", step.sums.trained, " trained and ", step.sums.dropped,
            " dropped groups, ", step.sums.completions, " completions and ", step.sums.tokens,
            " tokens; its groups add up to ", sums.trained, ", ", sums.dropped, ", ",
            sums.completions, " and ", sums.tokens, ", or differ in what was trained of it");
    }
  }

  // drops/group_REASON of each version, in metrics.jsonl and by the ledger, where the groups of
  // skipped steps count with the next version, as step_skipped.
  void CheckMetrics() {
    std::map<int64_t, std::map<std::string, int64_t>> ledger;
    std::map<int64_t, int64_t> version_of;  // step -> the version it made or the next one made
    int64_t next = 0;
    for (auto step = tables_.steps.rbegin(); step != tables_.steps.rend(); ++step) {
      if (step->version != 0) next = step->version;
      version_of[step->number] = next;
    }
    for (const Group& group : tables_.groups) {
      if (group.fate == "trained") continue;
      const std::string reason = group.fate == "skipped" ? "step_skipped" : group.reason;
      ++ledger[version_of[group.step]][reason];
    }
    const int64_t last = LastVersion();
    int64_t last_line = 0;
    std::ifstream lines(run_ + "/metrics.jsonl");
    for (std::string text; std::getline(lines, text);) {
      const json line = json::parse(text, nullptr, /*allow_exceptions=*/false);
      if (!line.is_object() || !line.contains("time/step")) continue;  // an evaluation at the start
      const int64_t version = line.value("step", int64_t{0});
      last_line = std::max(last_line, version);
      if (version > last) {
        Wrong("metrics.jsonl has step ", version, ", which the ledger has not");
        continue;
      }
      CompareDrops(version, line, ledger[version]);
    }
    if (last_line < last) {
      report_.notes.push_back(
          absl::StrCat("the ledger is ahead of metrics.jsonl, which ends at version ", last_line,
                       ": the run goes on, or was killed between the two"));
    }
  }

  void CompareDrops(int64_t version, const json& line,
                    const std::map<std::string, int64_t>& ledger) {
    std::map<std::string, int64_t> metrics;
    constexpr char kPrefix[] = "drops/group_";
    for (const auto& [name, value] : line.items()) {
      if (name.starts_with(kPrefix)) metrics[name.substr(sizeof(kPrefix) - 1)] = value;
    }
    if (metrics == ledger) return;
    const auto text = [](const std::map<std::string, int64_t>& drops) {
      std::string list;
      for (const auto& [reason, count] : drops) {
        absl::StrAppend(&list, list.empty() ? "" : ", ", count, " ", reason);
      }
      return list.empty() ? std::string("none") : list;
    };
    Wrong("metrics.jsonl counts as dropped for version ", version, ": ", text(metrics),
          "; the ledger: ", text(ledger));
  }

  void CheckRollouts() {
    std::map<int64_t, const Group*> by_id;
    for (const Group& group : tables_.groups) by_id[group.id] = &group;
    for (const Step& step : tables_.steps) {
      const std::string name = absl::StrCat("rollouts/step_", step.version, ".jsonl");
      std::ifstream lines(absl::StrCat(run_, "/", name));
      if (step.version == 0 || !lines) continue;
      int64_t sampled = 0;
      for (std::string text; std::getline(lines, text);) {
        const json line = json::parse(text, nullptr, /*allow_exceptions=*/false);
        if (!line.is_object()) continue;
        const int64_t id = line.value("group_id", int64_t{-1});
        const auto group = by_id.find(id);
        ++sampled;
        if (group == by_id.end() || group->second->step != step.number) {
          Wrong(name, " has group ", id, ", which step ", step.number, " did not take");
          continue;
        }
        CompareGroup(name, line, *group->second);
      }
      const int64_t came = std::ranges::count_if(tables_.groups, [&](const Group& group) {
        return group.step == step.number && group.sums.completions > 0;
      });
      if (sampled != came) {
        Wrong(name, " has ", sampled, " groups; ", came, " came back to step ", step.number);
      }
    }
  }

  void CompareGroup(const std::string& name, const json& line, const Group& group) {
    int64_t completions = 0, tokens = 0;
    for (const json& completion : line.value("completions", json::array())) {
      ++completions;
      tokens += NumSampled(completion);
    }
    if (line.value("drop_reason", "") != group.reason || completions != group.sums.completions ||
        tokens != group.sums.tokens) {
      Wrong(name, ": group ", group.id, " has ", completions, " completions, ", tokens,
            " tokens and the reason \"", line.value("drop_reason", ""), "\"; the ledger has ",
            group.sums.completions, ", ", group.sums.tokens, " and \"", group.reason, "\"");
    }
  }

  void CheckCheckpoints() {
    std::error_code ignored;
    for (const auto& entry : fs::directory_iterator(run_ + "/checkpoints", ignored)) {
      const auto text = ReadFile(entry.path().string() + "/state.json");
      if (!text.ok()) continue;
      const json state = json::parse(*text, nullptr, /*allow_exceptions=*/false);
      if (!state.is_object() || !state.contains("next_group")) continue;
      const int64_t number = state.value("next_group_step", int64_t{0});
      const auto step = std::ranges::find(tables_.steps, number, &Step::number);
      const int64_t expected = step == tables_.steps.end() ? 0 : step->next_group;
      if (number > 0 && step == tables_.steps.end()) {
        Wrong("checkpoint ", entry.path().filename().string(), " is of step ", number,
              ", which the ledger has not");
      } else if (state.value("next_group", int64_t{0}) != expected) {
        Wrong("checkpoint ", entry.path().filename().string(), " goes on from group ",
              state.value("next_group", int64_t{0}), ", and step ", number, " ended before group ",
              expected);
      }
    }
  }

  int64_t LastVersion() const {
    int64_t last = 0;
    for (const Step& step : tables_.steps) last = std::max(last, step.version);
    return last;
  }

  void AddTotals() {
    LedgerTotals& totals = report_.totals;
    for (const Step& step : tables_.steps) {
      ++totals.steps;
      totals.skipped_steps += step.version == 0;
    }
    for (const Group& group : tables_.groups) {
      ++totals.groups;
      totals.trained += group.fate == "trained";
      totals.skipped += group.fate == "skipped";
      if (group.fate == "dropped") ++totals.dropped[group.reason];
      totals.asked += group.asked;
      totals.completions += group.sums.completions;
      totals.trained_completions += group.sums.trained_completions;
      totals.tokens += group.sums.tokens;
      totals.trained_tokens += group.sums.trained_tokens;
    }
  }

  const std::string run_;
  const Tables tables_;
  LedgerReport report_;
};

}  // namespace

absl::StatusOr<LedgerReport> CheckLedger(const std::string& run) {
  std::error_code ignored;
  if (!fs::is_directory(run, ignored)) {
    return NotFound(run, " is no directory: name that of a run");
  }
  auto tables = ReadTables(absl::StrCat(run, "/", trainer::kLedgerFile));
  if (tables.status().code() == absl::StatusCode::kNotFound) {
    return NotFound(run, " has no ", trainer::kLedgerFile,
                    ": it is no run directory, or one of an earlier release");
  }
  TANDEM_RETURN_IF_ERROR(tables.status());
  return Checker(run, *std::move(tables)).Check();
}

}  // namespace tandem::cli
