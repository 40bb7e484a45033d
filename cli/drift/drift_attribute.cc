// tandem drift attribute: how much of a capture's training-inference mismatch (drift) comes from
// what.
#include <CLI/CLI.hpp>
#include <filesystem>
#include <memory>
#include <span>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "cli/drift/capture_flags.h"
#include "cli/drift/progress_lines.h"
#include "cli/io/output_file.h"
#include "cli/io/shared_flags.h"
#include "cli/io/subcommand.h"
#include "cli/report/report.h"
#include "common/base/exit_codes.h"
#include "common/base/status_macros.h"
#include "common/options/command_line.h"
#include "common/tokenizer/tokenizer.h"
#include "drift_lab/ablation/attribution.h"
#include "drift_lab/pages/attribution_report.h"

namespace tandem::cli {
namespace {

struct AttributeFlags {
  drift::AttributionOptions options;
  JsonFlags json;
  std::string html;
};

absl::Status WritePage(const AttributeFlags& flags, const drift::Attribution& attribution) {
  std::unique_ptr<Tokenizer> tokenizer;
  // With findings no token is shown, and the model may not be the capture's.
  if (attribution.findings.empty()) {
    const std::string& model = flags.options.model;
    TANDEM_ASSIGN_OR_RETURN(
        tokenizer,
        Tokenizer::Load(model.empty() ? attribution.capture.manifest.model_path : model));
  }
  const auto decode = [&](std::span<const int32_t> ids) {
    const absl::StatusOr<std::string> text = tokenizer->Decode(ids, /*skip_special_tokens=*/false);
    return text.ok() ? *text : absl::StrCat("<id ", ids.empty() ? -1 : ids[0], ">");
  };
  const std::filesystem::path capture(attribution.path + "/");
  return WriteOutputFile(
      flags.html,
      report::AttributionHtml(capture.lexically_normal().parent_path().filename().string(),
                              drift::AttributionPageData(attribution, decode)));
}

// Returns exit code 3 for a capture that is not comparable, after the findings are printed.
absl::StatusOr<int> RunAttribute(AttributeFlags& flags) {
  TANDEM_RETURN_IF_ERROR(FindModelFlags(&flags.options.model, &flags.options.weights));
  TANDEM_RETURN_IF_ERROR(CheckIsOneCapture(flags.options.capture));
  for (const std::string& path : {flags.html, flags.json.file}) {
    TANDEM_RETURN_IF_ERROR(CheckOutputFolder(path));
  }
  TANDEM_ASSIGN_OR_RETURN(const drift::Attribution attribution,
                          drift::Attribute(flags.options, PassLine()));
  if (!flags.html.empty()) TANDEM_RETURN_IF_ERROR(WritePage(flags, attribution));
  TANDEM_RETURN_IF_ERROR(PrintResult(flags.json, drift::AttributionTable(attribution),
                                     drift::AttributionJson(attribution)));
  return ToInt(attribution.findings.empty() ? ExitCode::kOk : ExitCode::kBadModelOrData);
}

}  // namespace

void AddDriftAttributeCommand(CLI::App& drift, Action& chosen) {
  auto flags = std::make_shared<AttributeFlags>();
  CLI::App* sub = drift.add_subcommand(
      "attribute",
      "Re-score a capture step by step: how much of its mismatch (drift) comes from what");
  AddCaptureArgument(sub, &flags->options.capture);
  AddModelFlags(sub, &flags->options.model, &flags->options.weights);
  sub->add_flag("--full", flags->options.full, "one factor more: the head's matrix by itself");
  sub->add_option("--seed", flags->options.seed, "of samples and intervals")->capture_default_str();
  AddJsonFlags(sub, &flags->json);
  sub->add_option(
      "--html", flags->html,
      "also write a page to this file: verdict, parts, curves, heat map, worst tokens; named\n"
      "attribution.html in the capture's directory, the run's report links to it");
  EndHelp(*sub, kFindingsHelp,
          "tandem drift attribute runs/NAME/captures/step_1 --json-out attribution.json");
  SetAction(*sub, chosen, [flags] { return ExitAfterCapture(RunAttribute(*flags)); });
}

}  // namespace tandem::cli
