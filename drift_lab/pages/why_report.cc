#include "drift_lab/pages/why_report.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/status_macros.h"
#include "drift_lab/pages/report_parts.h"

namespace tandem::drift {
namespace {

using nlohmann::ordered_json;

constexpr double kAblationShare = 0.85;  // of the time; only the progress display depends on it

// Experiments that ask for the same action share a line.
void AppendToDo(const Why& why, std::string& out) {
  std::vector<std::pair<std::string, std::string>> lines;  // who, what
  for (const Finding finding : {Finding::kIsIt, Finding::kCannotTell}) {
    for (const Experiment& e : why.experiments) {
      if (e.finding != finding || e.to_do.empty()) continue;
      const std::string who =
          absl::StrCat(e.name, finding == Finding::kIsIt ? "" : " (would decide)");
      const auto same =
          std::ranges::find(lines, e.to_do, &std::pair<std::string, std::string>::second);
      if (same == lines.end()) {
        lines.emplace_back(who, e.to_do);
      } else {
        absl::StrAppend(&same->first, ", ", who);
      }
    }
  }
  if (!lines.empty()) absl::StrAppend(&out, "\nwhat to do\n");
  for (const auto& [who, what] : lines) {
    const std::string head = absl::StrCat("  ", who, ": ");
    absl::StrAppend(&out, head, WrapText(what, head.size(), 4), "\n");
  }
}

void AppendExperiments(const Why& why, Ratio ratio, std::string& out) {
  constexpr size_t kIndent = 31;
  for (const Experiment& e : why.experiments) {
    if (e.ratio != ratio) continue;
    absl::StrAppendFormat(&out, "  %-16s %-11s ", e.name, std::string(FindingName(e.finding)));
    if (2 + std::max<size_t>(e.name.size(), 16) + 13 > kIndent)
      out += "\n" + std::string(kIndent, ' ');
    absl::StrAppend(&out, WrapText(e.compared, kIndent, kIndent), "\n", std::string(kIndent, ' '),
                    WrapText("-> " + e.result, kIndent, kIndent + 3), "\n");
  }
}

ordered_json ToJson(const Experiment& e) {
  return {{"experiment", e.name},
          {"ratio", std::string(RatioName(e.ratio))},
          {"compared", e.compared},
          {"result", e.result},
          {"finding", std::string(FindingName(e.finding))},
          {"cause", e.cause},
          {"to_do", e.to_do},
          {"square_share", Number(e.share)}};
}

ordered_json ToJson(const RatioAnswer& answer) {
  const char* const state = answer.state == RatioState::kOne      ? "one"
                            : answer.state == RatioState::kNotOne ? "not_one"
                                                                  : "unknown";
  return {{"state", state}, {"answer", answer.sentence}};
}

}  // namespace

absl::StatusOr<WhyReport> RunWhy(const std::string& path, AttributionOptions options,
                                 const PassProgress& progress) {
  WhyReport report;
  TANDEM_ASSIGN_OR_RETURN(report.target, FindCapture(path));
  TANDEM_ASSIGN_OR_RETURN(report.run, ReadRunRatios(report.target.run));
  options.capture = report.target.capture;
  const PassProgress ablation = [&](const std::string& what, double done) {
    progress(what, kAblationShare * done);
  };
  TANDEM_ASSIGN_OR_RETURN(report.attribution, Attribute(options, ablation));
  if (report.attribution.findings.empty()) {
    const PassProgress again = [&](const std::string& what, double done) {
      progress(what, kAblationShare + (1 - kAblationShare) * done);
    };
    TANDEM_ASSIGN_OR_RETURN(report.trainer,
                            RunTrainerExperiments(report.attribution, options, again));
  }
  report.why = ExplainRatios(report.attribution, report.trainer, report.run);
  return report;
}

std::string WhyTable(const WhyReport& report) {
  const Why& why = report.why;
  std::string out;
  absl::StrAppend(&out, why.trainer_over_server.sentence, "\n", why.target_over_proximal.sentence,
                  "\n");
  AppendToDo(why, out);
  const offpolicy::Capture& capture = report.attribution.capture;
  absl::StrAppendFormat(&out, "\n%s: step %d, %d completions, %d tokens\n", report.target.capture,
                        capture.manifest.step, capture.num_completions(), capture.num_drawn());
  for (const std::string& fault : capture.manifest.injected) {
    absl::StrAppend(&out, "FAULT INJECTED into this run: ", fault, "\n");
  }
  for (const Ratio ratio : {Ratio::kTrainerOverServer, Ratio::kTargetOverProximal}) {
    absl::StrAppend(&out, "\n", std::string(RatioName(ratio)),
                    ratio == Ratio::kTrainerOverServer ? ", trainer against server"
                                                       : ", between the updates of a step",
                    "\n");
    AppendExperiments(why, ratio, out);
  }
  return out;
}

std::string WhyJson(const WhyReport& report) {
  const offpolicy::Capture& capture = report.attribution.capture;
  ordered_json experiments = ordered_json::array();
  for (const Experiment& e : report.why.experiments) experiments.push_back(ToJson(e));
  ordered_json json = {{"format", "tandem-why"},
                       {"format_version", 1},
                       {"capture", report.target.capture},
                       {"run", report.target.run},
                       {"step", capture.manifest.step},
                       {"injected", capture.manifest.injected},
                       {"comparable", report.attribution.findings.empty()},
                       {"answer", report.why.answer()},
                       {"pi_over_mu", ToJson(report.why.trainer_over_server)},
                       {"target_over_proximal", ToJson(report.why.target_over_proximal)},
                       {"experiments", experiments}};
  return json.dump(1, ' ', false, ordered_json::error_handler_t::replace);
}

}  // namespace tandem::drift
