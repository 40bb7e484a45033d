// tandem ledger: what became of the groups of a run, and whether its records agree about it.
#include <CLI/CLI.hpp>
#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "cli/io/shared_flags.h"
#include "cli/io/subcommand.h"
#include "cli/watch/ledger_check.h"
#include "common/base/exit_codes.h"
#include "common/base/status_macros.h"
#include "common/options/command_line.h"
#include "nlohmann/json.hpp"

namespace tandem::cli {
namespace {

struct LedgerFlags {
  std::string run;
  JsonFlags json;
};

std::string Share(int64_t part, int64_t whole) {
  return whole == 0 ? "" : absl::StrCat(" (", (200 * part + whole) / (2 * whole), " %)");
}

std::string ToText(const LedgerReport& report) {
  const LedgerTotals& totals = report.totals;
  const auto reason = [](std::string* out, const auto& entry) {
    absl::StrAppend(out, entry.second, " ", entry.first);
  };
  std::string text = absl::StrCat(
      "steps        ", totals.steps, ", ", totals.skipped_steps, " skipped\n",  //
      "groups       ", totals.groups, " asked for, ", totals.trained, " trained",
      Share(totals.trained, totals.groups),
      totals.dropped.empty() ? "" : ", dropped: ", absl::StrJoin(totals.dropped, ", ", reason),
      totals.skipped == 0 ? "" : absl::StrCat(", ", totals.skipped, " of skipped steps"), "\n");
  absl::StrAppend(&text, "completions  ", totals.asked, " asked for, ", totals.completions,
                  " came, ", totals.trained_completions, " trained",
                  Share(totals.trained_completions, totals.completions), "\n",  //
                  "tokens       ", totals.tokens, " sampled, ", totals.trained_tokens, " trained",
                  Share(totals.trained_tokens, totals.tokens), "\n");
  for (const std::string& note : report.notes) absl::StrAppend(&text, "note         ", note, "\n");
  for (const std::string& one : report.problems) absl::StrAppend(&text, "problem      ", one, "\n");
  const size_t problems = report.problems.size();
  absl::StrAppend(&text, "balance      ",
                  problems == 0 ? "it balances" : absl::StrCat(problems, " problems"), "\n");
  return text;
}

std::string ToJson(const LedgerReport& report) {
  const LedgerTotals& totals = report.totals;
  return nlohmann::ordered_json{{"steps", totals.steps},
                                {"skipped_steps", totals.skipped_steps},
                                {"groups", totals.groups},
                                {"trained", totals.trained},
                                {"skipped", totals.skipped},
                                {"dropped", totals.dropped},
                                {"asked_completions", totals.asked},
                                {"completions", totals.completions},
                                {"trained_completions", totals.trained_completions},
                                {"tokens", totals.tokens},
                                {"trained_tokens", totals.trained_tokens},
                                {"notes", report.notes},
                                {"problems", report.problems}}
      .dump();
}

int RunLedger(const LedgerFlags& flags) {
  const auto report = CheckLedger(flags.run);
  if (!report.ok()) {
    return Fail(trainer::WithExitCode(report.status(), ExitCode::kBadModelOrData));
  }
  const absl::Status printed = PrintResult(flags.json, ToText(*report), ToJson(*report));
  if (!printed.ok()) return Fail(trainer::WithExitCode(printed, ExitCode::kStorage));
  return ToInt(report->problems.empty() ? ExitCode::kOk : ExitCode::kBadModelOrData);
}

}  // namespace

void AddLedgerCommand(CLI::App& app, Action& chosen) {
  auto flags = std::make_shared<LedgerFlags>();
  CLI::App* sub = app.add_subcommand(
      "ledger", "What was asked for, trained and dropped in a run, and whether it balances");
  sub->add_option("run", flags->run, "run directory")->required();
  AddJsonFlags(sub, &flags->json);
  EndHelp(*sub, "The exit code is 3 if the records of the run do not agree.",
          "tandem ledger runs/NAME");
  SetAction(*sub, chosen, [flags] { return RunLedger(*flags); });
}

}  // namespace tandem::cli
