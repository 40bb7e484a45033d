#include "cli/drift/why_records.h"

#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <span>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "cli/drift/progress_lines.h"
#include "cli/io/output_file.h"
#include "cli/io/subcommand.h"
#include "cli/report/report.h"
#include "common/base/exit_codes.h"
#include "common/base/status_macros.h"
#include "common/tokenizer/tokenizer.h"
#include "drift_lab/pages/referee_report.h"
#include "drift_lab/pages/screening_report.h"
#include "drift_lab/records/records_file.h"
#include "drift_lab/referee/forward/referee_model.h"
#include "drift_lab/referee/referee.h"
#include "drift_lab/screening/screening.h"

namespace tandem::cli {
namespace {

// The tokenizer of the model where it is on this machine; else null, and the page shows ids.
std::unique_ptr<Tokenizer> TokenizerOf(const WhyRecordsFlags& flags,
                                       const drift::Records& records) {
  for (const std::string& name : {flags.model, records.header.tokenizer, records.header.model}) {
    if (name.empty()) continue;
    const absl::StatusOr<std::string> found = drift::ResolveModelDirectory(name);
    if (!found.ok()) continue;
    absl::StatusOr<std::unique_ptr<Tokenizer>> loaded = Tokenizer::Load(*found);
    if (loaded.ok()) return *std::move(loaded);
  }
  return nullptr;
}

absl::Status WriteRecordsPage(const WhyRecordsFlags& flags, const drift::Records& records,
                              const drift::Screening& screening,
                              const drift::RefereeReport* referee) {
  const std::unique_ptr<Tokenizer> tokenizer = TokenizerOf(flags, records);
  const auto text_of = [&](std::span<const int32_t> ids) -> std::string {
    if (tokenizer == nullptr) return "";
    const absl::StatusOr<std::string> text = tokenizer->Decode(ids, /*skip_special_tokens=*/false);
    return text.ok() ? *text : "";
  };
  return WriteOutputFile(
      flags.html,
      report::RecordsHtml(std::filesystem::path(flags.path).filename().string(),
                          drift::RecordsPageData(records, screening, referee, text_of)));
}

absl::StatusOr<drift::Records> ReadWithProgress(const std::string& path) {
  const auto line = PassLine();
  return drift::ReadRecords(path, [&](int64_t bytes, int64_t total) {
    line("reading " + path,
         total > 0 ? static_cast<double>(bytes) / static_cast<double>(total) : 0);
  });
}

}  // namespace

void AddRefereeSeconds(CLI::App* sub, double& seconds, const std::string& on) {
  const std::string help = absl::StrCat(
      on, ": no suspect is begun after so long; a slow machine or a large model needs more");
  AddPositive(sub, "--referee-seconds", seconds, help.c_str());
}

absl::Status CheckWhyRecords(const WhyRecordsFlags& flags) {
  if (!flags.weights.empty()) {
    if (flags.model.empty()) {
      return AsUsageError(InvalidArgument(
          "--weights: a second set of weights is for the referee, which needs --model"));
    }
    TANDEM_RETURN_IF_ERROR(drift::ResolveModelDirectory(flags.weights).status());
  }
  for (const std::string& path : {flags.html, flags.json.file}) {
    TANDEM_RETURN_IF_ERROR(CheckOutputFolder(path));
  }
  return absl::OkStatus();
}

absl::StatusOr<int> RunWhyRecords(const WhyRecordsFlags& flags) {
  TANDEM_RETURN_IF_ERROR(CheckWhyRecords(flags));
  TANDEM_ASSIGN_OR_RETURN(const drift::Records records, ReadWithProgress(flags.path));
  const drift::Screening screening = drift::Screen(records, flags.seed);
  // Also before the referee: a page that cannot be written is known at once, and where the referee
  // refuses the model there is one.
  if (!flags.html.empty()) {
    TANDEM_RETURN_IF_ERROR(WriteRecordsPage(flags, records, screening, /*referee=*/nullptr));
  }
  std::string table = drift::ScreeningTable(screening), json = drift::ScreeningJson(screening);
  if (!flags.model.empty()) {
    const drift::RefereeOptions options = {.model = flags.model,
                                           .weights = flags.weights,
                                           .budget_seconds = flags.referee_seconds,
                                           .seed = flags.seed};
    TANDEM_ASSIGN_OR_RETURN(const drift::RefereeReport referee,
                            drift::RunReferee(records, screening.pairs, options, PassLine()));
    if (!flags.html.empty()) {
      TANDEM_RETURN_IF_ERROR(WriteRecordsPage(flags, records, screening, &referee));
    }
    table += drift::RefereeTable(referee);
    nlohmann::ordered_json both = nlohmann::ordered_json::parse(json);
    both["referee"] = drift::RefereeJson(referee);
    json = both.dump(2);
  }
  TANDEM_RETURN_IF_ERROR(PrintResult(flags.json, table, json));
  return ToInt(ExitCode::kOk);
}

}  // namespace tandem::cli
