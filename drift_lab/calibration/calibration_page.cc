#include "drift_lab/calibration/calibration_tables.h"

#include <cmath>
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "drift_lab/pages/report_parts.h"
#include "nlohmann/json.hpp"

namespace tandem::drift {
namespace {

using nlohmann::ordered_json;

constexpr double kLeastSlope = 0.9, kLargestSlope = 1.1, kNominal = 0.95, kMostFalse = 0.05;

std::string Row(const std::vector<std::string>& cells) {
  return absl::StrCat("| ", absl::StrJoin(cells, " | "), " |\n");
}

std::string Head(const std::vector<std::string>& names) {
  return Row(names) + Row(std::vector<std::string>(names.size(), "---"));
}

std::string Percent(const Count& count) {
  if (count.trials == 0) return "–";
  const offpolicy::ShareInterval interval = count.interval();
  return absl::StrFormat("%.1f %% (%d of %d; %.1f to %.1f)", 100 * count.share(), count.successes,
                         count.trials, 100 * interval.low, 100 * interval.high);
}

// Marks a missed target. Nothing is hidden, and no number is rounded to meet its target.
std::string Marked(std::string text, bool met) {
  return met ? text : absl::StrCat("**", text, "** (missed)");
}

// The target is met if the exact interval of the share contains the nominal level.
std::string Coverage(const Count& count) {
  if (count.trials == 0) return "–";
  const offpolicy::ShareInterval interval = count.interval();
  return Marked(Percent(count), interval.low <= kNominal && kNominal <= interval.high);
}

std::string FalseNames(const CalibrationTables& tables) {
  std::string out =
      "## Without a fault\n\nfp32 on both sides, `fast` numerics, nothing injected. Share of "
      "captures that name a cause though there is none (target: 5 % or less, within sampling "
      "error).\n\n";
  out += Head({"cause", "named falsely"});
  for (const auto& [cause, count] : tables.false_names) {
    out += Row({absl::StrCat("`", cause, "`"),
                Marked(Percent(count), count.interval().low <= kMostFalse)});
  }
  return absl::StrCat(out, "\nNo injectable cause named at all: ", Percent(tables.healthy),
                      ".\n\n");
}

const char* KindName(ParameterKind kind) {
  return kind == ParameterKind::kEstimated    ? "estimated"
         : kind == ParameterKind::kIdentified ? "identified"
                                              : "switch";
}

std::string Strengths(const CalibrationTables& tables) {
  std::string out =
      "## Strength\n\nInjected against estimated, in natural sizes, over all strengths and as many "
      "captures without a fault; where the cause is not named the estimate is 0. Target: slope 0.9 "
      "to 1.1. *Estimated* strengths come with a 95 % interval from the tokens; *identified* ones "
      "are "
      "found by a replay that gives the record back to the last bit, so their bounds are the "
      "values that would do so, and hold the truth or are wrong.\n\n";
  out += Head({"injector", "fault parameter", "strength is", "slope", "intercept",
               "largest relative error", "95 % interval or bounds hold the truth"});
  for (const InjectorRow& row : tables.injectors) {
    if (row.kind == ParameterKind::kSwitch) continue;
    out +=
        Row({absl::StrCat("`", row.name, "`"), row.parameter, KindName(row.kind),
             Marked(absl::StrFormat("%.3f", row.slope),
                    row.slope >= kLeastSlope && row.slope <= kLargestSlope),
             absl::StrFormat("%.3f", row.intercept), absl::StrFormat("%.2g", row.largest_error),
             row.kind == ParameterKind::kEstimated ? Coverage(row.covered) : Percent(row.covered)});
  }
  return out + "\n";
}

std::string Amounts(const CalibrationTables& tables) {
  std::string out =
      "## Size of the mismatch\n\nAn identified fault parameter has no sampling error, but what it "
      "does to the tokens has: share of captures whose 95 % interval (cluster bootstrap by group) "
      "holds the mean over all captures of that injector and strength, pooled over strengths. "
      "Target: 95 % inside the exact interval of so many captures.\n\n";
  out += Head({"injector", "mean abs(delta)", "k3"});
  for (const InjectorRow& row : tables.injectors) {
    out += Row({absl::StrCat("`", row.name, "`"), Coverage(row.mean_abs_covered),
                Coverage(row.k3_covered)});
  }
  return out + "\n";
}

std::string Detection(const CalibrationTables& tables) {
  std::set<double> strengths;
  for (const InjectorRow& row : tables.injectors) {
    for (const auto& [strength, count] : row.found) strengths.insert(strength);
  }
  std::vector<std::string> head = {"injector"};
  for (const double strength : strengths) head.push_back(absl::StrCat("x ", strength));
  head.push_back("smallest found");
  head.push_back("tokens a capture");
  std::string out =
      "## Smallest strength that is found\n\nShare of captures that name the right cause, by "
      "strength; the smallest of the grid from which on at least 95 % do.\n\n" +
      Head(head);
  for (const InjectorRow& row : tables.injectors) {
    std::vector<std::string> cells = {absl::StrCat("`", row.name, "`")};
    for (const double strength : strengths) {
      const auto found = row.found.find(strength);
      cells.push_back(
          found == row.found.end() ? "–" : absl::StrFormat("%.0f %%", 100 * found->second.share()));
    }
    cells.push_back(std::isfinite(row.smallest_found) ? absl::StrCat("x ", row.smallest_found)
                                                      : "none");
    cells.push_back(absl::StrFormat("%.0f", row.tokens));
    out += Row(cells);
  }
  return out + "\n";
}

std::string Confusion(const CalibrationTables& tables) {
  std::string out =
      "## Which cause is named\n\nAt natural strength: the injectable cause with the largest share "
      "of the mean square. Target: right in 95 %.\n\n";
  out += Head({"injector", "named right", "otherwise"});
  for (const InjectorRow& row : tables.injectors) {
    const auto confused = tables.confusion.find(row.name);
    std::vector<std::string> others;
    if (confused != tables.confusion.end()) {
      for (const auto& [cause, count] : confused->second) {
        if (cause != PartName(InjectorNamed(row.name)->part))
          others.push_back(absl::StrCat("`", cause, "` ", count));
      }
    }
    out += Row({absl::StrCat("`", row.name, "`"), Marked(Percent(row.top), row.top.share() >= 0.95),
                others.empty() ? "–" : absl::StrJoin(others, ", ")});
  }
  return out + "\n";
}

std::string Pairs(const CalibrationTables& tables) {
  std::string out =
      "## Two faults at once\n\nBoth at natural strength. Target: the top cause is one of the two "
      "in 80 %.\n\n";
  out += Head({"faults", "top cause is one of them", "both are named"});
  Count all;
  for (const PairRow& row : tables.pairs) {
    out += Row({absl::StrCat("`", row.first, "` and `", row.second, "`"),
                Marked(Percent(row.top), row.top.share() >= 0.8), Percent(row.both)});
    all.successes += row.top.successes;
    all.trials += row.top.trials;
  }
  return absl::StrCat(out, "\nAll pairs: ", Percent(all), ".\n\n");
}

std::string Abstention(const CalibrationTables& tables) {
  std::string out =
      "## Faults the lab has no hypothesis for\n\nRight is to name nothing and to say that "
      "something is unexplained. Target: 90 %.\n\n";
  out += Head({"fault", "what", "mean abs(delta), nats", "abstained"});
  for (const UnmodelledRow& row : tables.unmodelled) {
    out += Row({absl::StrCat("`", row.name, "`"), row.what, absl::StrFormat("%.2g", row.mean_abs),
                Marked(Percent(row.abstained), row.abstained.share() >= 0.9)});
  }
  return out + "\n";
}

ordered_json CountJson(const Count& count) {
  return {{"successes", count.successes}, {"trials", count.trials}};
}

}  // namespace

std::string ToMarkdown(const CalibrationReport& report) {
  const CaptureShape& shape = report.study.shape;
  std::string out = absl::StrCat(
      "# Calibration of the drift lab\n\n", report.date, ", commit ", report.commit,
      ". Every table comes from\n\n```\n", report.command, "\n```\n\nSubject: a random model of ",
      report.num_parameters, " parameters (seed ", report.study.seed, ", versions 0 to ",
      kSubjectVersion, "), ", shape.groups, " groups of ", shape.completions, " completions of ",
      shape.tokens,
      " tokens a capture, fp32 on both sides. Captures per injector, over its strengths: ",
      report.grid.captures, "; without a fault: ", report.grid.healthy,
      "; seeds count from 1. Shares stand with their exact 95 % interval. ",
      absl::StrFormat("All trials took %.0f processor minutes.\n\n", report.tables.seconds / 60));
  return out + FalseNames(report.tables) + Strengths(report.tables) + Amounts(report.tables) +
         Detection(report.tables) + Confusion(report.tables) + Pairs(report.tables) +
         Abstention(report.tables);
}

std::string ToJson(const CalibrationReport& report) {
  ordered_json json = {{"format", "tandem-calibration"},
                       {"format_version", 1},
                       {"date", report.date},
                       {"commit", report.commit},
                       {"command", report.command}};
  for (const auto& [cause, count] : report.tables.false_names)
    json["false_names"][cause] = CountJson(count);
  for (const InjectorRow& row : report.tables.injectors) {
    ordered_json found = ordered_json::object();
    for (const auto& [strength, count] : row.found)
      found[absl::StrCat(strength)] = CountJson(count);
    json["injectors"][row.name] = {{"kind", KindName(row.kind)},
                                   {"slope", Number(row.slope)},
                                   {"intercept", Number(row.intercept)},
                                   {"largest_error", Number(row.largest_error)},
                                   {"top", CountJson(row.top)},
                                   {"covered", CountJson(row.covered)},
                                   {"mean_abs_covered", CountJson(row.mean_abs_covered)},
                                   {"k3_covered", CountJson(row.k3_covered)},
                                   {"found", found},
                                   {"smallest_found", Number(row.smallest_found)}};
  }
  json["confusion"] = report.tables.confusion;
  for (const PairRow& row : report.tables.pairs) {
    json["pairs"][absl::StrCat(row.first, "+", row.second)] = {{"top", CountJson(row.top)},
                                                               {"both", CountJson(row.both)}};
  }
  for (const UnmodelledRow& row : report.tables.unmodelled)
    json["unmodelled"][row.name] = CountJson(row.abstained);
  return json.dump(1) + "\n";
}

}  // namespace tandem::drift
