#include <cmath>
#include <cstdlib>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "drift_lab/pages/replay_report.h"

namespace tandem::drift {
namespace {

using offpolicy::Interval;

std::string Formatted(double value, const char* digits = "%.3g") {
  if (!std::isfinite(value)) return "-";
  return absl::StrFormat(*absl::ParsedFormat<'g'>::New(digits), value);
}

std::string FormattedWithBounds(const Interval& i, const char* digits) {
  if (!i.known()) return Formatted(i.value, digits);
  return absl::StrCat(Formatted(i.value, digits), " [", Formatted(i.low, digits), ", ",
                      Formatted(i.high, digits), "]");
}

std::string PlainPercent(double value) {
  return std::isfinite(value) ? absl::StrFormat("%.1f", 100 * value) : "-";
}

// A threshold that a null chose has all its digits in JSON.
std::string ThresholdText(const ReplayVariant& variant) {
  if (variant.null_rate == 0) return variant.threshold;
  std::vector<std::string> values = absl::StrSplit(variant.threshold, ':');
  for (std::string& value : values) value = Formatted(std::atof(value.c_str()), "%.5g");
  return absl::StrJoin(values, ":");
}

std::string NameOf(const ReplayRow& row) {
  if (row.variant.null_rate == 0) return row.variant.method;
  return absl::StrFormat("%s @%g%%", row.variant.method, 100 * row.variant.null_rate);
}

void AppendHeader(const Replay& r, std::string& out) {
  const offpolicy::CaptureManifest& m = r.capture.manifest;
  if (!m.injected.empty()) {
    absl::StrAppend(&out, "FAULTS WERE INJECTED into this capture:\n  ",
                    absl::StrJoin(m.injected, "\n  "), "\n");
  }
  absl::StrAppend(&out, r.path, ": step ", m.step, ", ", r.capture.num_completions(),
                  " completions in ", r.capture.num_groups(), " groups, ", r.capture.num_tokens(),
                  " tokens\n");
}

void AppendFindings(const Replay& r, std::string& out) {
  absl::StrAppend(&out,
                  "\nNot comparable. This is a discrete fault, not drift; no number is given.\n");
  for (const GateFinding& finding : r.findings) {
    absl::StrAppend(&out, "  ", std::string(DiscreteFaultName(finding.fault)), ": ",
                    finding.message, "\n");
  }
}

void AppendFacts(const Replay& r, std::string& out) {
  absl::StrAppendFormat(&out,
                        "%d trained tokens with an advantage other than 0, in %d completions of %d "
                        "groups; %d parameters, %d backward passes\n",
                        r.numbers.num_tokens, r.numbers.num_completions, r.numbers.num_groups,
                        r.num_parameters, r.num_backward_passes);
  absl::StrAppendFormat(
      &out, "proximal log-probs, scored again, differ from the trainer's record by at most %s\n",
      Formatted(r.max_rescore_difference));
  if (r.relative_error > 0) {
    absl::StrAppendFormat(
        &out, "gradients are sketched: norms to %.2f %%, a cosine c to %.2f %% of 1 - c^2\n",
        50 * r.relative_error, 100 * r.relative_error / std::sqrt(2.0));
  }
  if (r.numbers.num_groups < offpolicy::kLeastClusters) {
    absl::StrAppend(&out, "no intervals: they take ", offpolicy::kLeastClusters, " groups\n");
  }
  if (!r.nulls.empty()) {
    absl::StrAppendFormat(&out, "null: %d completions, %d tokens, standard deviation of delta %s\n",
                          r.null_floor.num_completions(), r.null_floor.num_tokens(),
                          Formatted(r.null_floor.noise));
  }
}

void AppendGradients(const Replay& r, std::string& out) {
  absl::StrAppendFormat(&out, "\n%-21s %-20s %-8s %-22s %-23s %-7s %s\n", "method", "threshold",
                        "|g|", "|g| / |g off|", "cosine to exact", "to off", "noise");
  for (const ReplayRow& row : r.numbers.rows) {
    absl::StrAppendFormat(&out, "%-21s %-20s %-8s %-22s %-23s %-7s %s\n", NameOf(row),
                          ThresholdText(row.variant), Formatted(row.gradient_norm),
                          FormattedWithBounds(row.norm_ratio, "%.3g"),
                          FormattedWithBounds(row.cosine[kNumReferences - 1], "%.4g"),
                          Formatted(row.cosine[0].value, "%.5g"),
                          Formatted(std::sqrt(row.variance_by_group) / row.gradient_norm));
  }
  absl::StrAppend(
      &out,
      "exact: product weights without a ceiling, the unbiased estimator; off: no correction.\n"
      "noise: standard error of g over groups, relative to |g|. Brackets: 95 % over groups; too "
      "narrow\n"
      "where noise is near 1 (docs/replay.md).\n");
  if (!r.numbers.exact_withheld.empty()) {
    absl::StrAppend(&out, "Nothing is compared with exact: ", r.numbers.exact_withheld, ".\n");
  }
}

void AppendTokens(const Replay& r, std::string& out) {
  absl::StrAppendFormat(&out, "\n%-21s %-20s %-7s %-9s %-7s %-14s %-15s%s\n", "method", "threshold",
                        "ESS %", "eff. tok.", "kept %", "A>0 / A<0 %", "w A>0 / A<0",
                        r.nulls.empty() ? "" : " on the null %");
  for (const ReplayRow& row : r.numbers.rows) {
    absl::StrAppendFormat(&out, "%-21s %-20s %-7s %-9s %-7s %-14s %-15s%s\n", NameOf(row),
                          ThresholdText(row.variant), PlainPercent(row.ess_fraction.value),
                          Formatted(row.effective_tokens, "%.4g"), PlainPercent(row.kept.value),
                          absl::StrCat(PlainPercent(row.kept_positive.value), " / ",
                                       PlainPercent(row.kept_negative.value)),
                          absl::StrCat(Formatted(row.mean_weight_positive.value), " / ",
                                       Formatted(row.mean_weight_negative.value)),
                          r.nulls.empty() ? "" : absl::StrCat(" ", PlainPercent(row.null_share)));
  }
  if (!r.nulls.empty()) {
    absl::StrAppend(
        &out,
        "on the null: the share of a healthy run's tokens that the method drops or bounds.\n");
  }
}

void AppendLengths(const Replay& r, std::string& out) {
  std::string lines;
  for (const ReplayRow& row : r.numbers.rows) {
    if (row.kept.value == 1 || row.kept.value == 0) continue;
    absl::StrAppendFormat(&lines, "%-21s %-20s", NameOf(row), ThresholdText(row.variant));
    for (const LengthShare& share : row.by_length)
      absl::StrAppendFormat(&lines, " %9s", PlainPercent(share.kept));
    lines += "\n";
  }
  if (lines.empty()) return;
  absl::StrAppendFormat(&out, "\n%-42s", "kept % by tokens of the completion");
  for (const LengthShare& share : r.numbers.rows.front().by_length) {
    absl::StrAppendFormat(&out, " %9s", share.label);
  }
  absl::StrAppend(&out, "\n", lines);
}

}  // namespace

std::string ReplayTable(const Replay& replay) {
  std::string out;
  AppendHeader(replay, out);
  if (!replay.findings.empty()) {
    AppendFindings(replay, out);
    return out;
  }
  AppendFacts(replay, out);
  AppendGradients(replay, out);
  AppendTokens(replay, out);
  AppendLengths(replay, out);
  for (const std::string& note : replay.notes) {
    absl::StrAppend(&out, "no threshold from the null: ", note, "\n");
  }
  return out;
}

}  // namespace tandem::drift
