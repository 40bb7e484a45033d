#include "drift_lab/pages/replay_report.h"

#include <cmath>
#include <cstdlib>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "drift_lab/pages/report_parts.h"

namespace tandem::drift {
namespace {

using nlohmann::ordered_json;

// A threshold that the baseline chose is cut to five digits; JSON has all of them.
std::string ThresholdText(const ReplayVariant& variant) {
  if (variant.baseline_rate == 0) return variant.threshold;
  std::vector<std::string> values = absl::StrSplit(variant.threshold, ':');
  for (std::string& value : values) value = NumberText(std::atof(value.c_str()), 5);
  return absl::StrJoin(values, ":");
}

std::string RowName(const ReplayRow& row) {
  if (row.variant.baseline_rate == 0) return row.variant.method;
  return absl::StrFormat("%s @%g%%", row.variant.method, 100 * row.variant.baseline_rate);
}

void AppendFacts(const Replay& r, std::string& out) {
  absl::StrAppendFormat(&out,
                        "%d trained tokens with an advantage other than 0, in %d completions of %d "
                        "groups; %d parameters, %d backward passes\n",
                        r.numbers.num_tokens, r.numbers.num_completions, r.numbers.num_groups,
                        r.num_parameters, r.num_backward_passes);
  absl::StrAppendFormat(
      &out, "proximal log-probs, scored again, differ from the trainer's record by at most %s\n",
      NumberText(r.max_rescore_difference));
  if (r.relative_error > 0) {
    absl::StrAppendFormat(
        &out, "gradients are sketched: norms to %.2f %%, a cosine c to %.2f %% of 1 - c^2\n",
        50 * r.relative_error, 100 * r.relative_error / std::sqrt(2.0));
  }
  if (r.numbers.num_groups < offpolicy::kLeastClusters) {
    absl::StrAppend(&out, "no intervals: they take ", offpolicy::kLeastClusters, " groups\n");
  }
  if (!r.baselines.empty()) {
    absl::StrAppendFormat(&out,
                          "baseline: %d completions, %d tokens, standard deviation of delta %s\n",
                          r.baseline_noise.num_completions(), r.baseline_noise.num_tokens(),
                          NumberText(r.baseline_noise.standard_deviation));
  }
}

void AppendGradients(const Replay& r, std::string& out) {
  absl::StrAppendFormat(&out, "\n%-21s %-20s %-8s %-22s %-23s %-7s %s\n", "method", "threshold",
                        "|g|", "|g| / |g off|", "cosine to exact", "to off", "noise");
  for (const ReplayRow& row : r.numbers.rows) {
    absl::StrAppendFormat(&out, "%-21s %-20s %-8s %-22s %-23s %-7s %s\n", RowName(row),
                          ThresholdText(row.variant), NumberText(row.gradient_norm),
                          WithBounds(row.norm_ratio), WithBounds(row.cosine[kNumReferences - 1], 4),
                          NumberText(row.cosine[0].value, 5),
                          NumberText(std::sqrt(row.variance_by_group) / row.gradient_norm));
  }
  absl::StrAppend(
      &out,
      "exact: product weights without a ceiling, the unbiased estimator; off: no correction.\n"
      "noise: standard error of g over groups, relative to |g|. Brackets: 95 % over groups; too "
      "narrow\nwhere noise is near 1 (docs/replay.md).\n");
  if (!r.numbers.exact_withheld.empty()) {
    absl::StrAppend(&out, "Nothing is compared with exact: ", r.numbers.exact_withheld, ".\n");
  }
}

void AppendTokens(const Replay& r, std::string& out) {
  absl::StrAppendFormat(&out, "\n%-21s %-20s %-7s %-9s %-7s %-14s %-15s%s\n", "method", "threshold",
                        "ESS %", "eff. tok.", "kept %", "A>0 / A<0 %", "w A>0 / A<0",
                        r.baselines.empty() ? "" : " on baseline %");
  for (const ReplayRow& row : r.numbers.rows) {
    absl::StrAppendFormat(
        &out, "%-21s %-20s %-7s %-9s %-7s %-14s %-15s%s\n", RowName(row),
        ThresholdText(row.variant), Percent(row.ess_fraction.value),
        NumberText(row.effective_tokens, 4), Percent(row.kept.value),
        absl::StrCat(Percent(row.kept_positive.value), " / ", Percent(row.kept_negative.value)),
        absl::StrCat(NumberText(row.mean_weight_positive.value), " / ",
                     NumberText(row.mean_weight_negative.value)),
        r.baselines.empty() ? "" : absl::StrCat(" ", Percent(row.baseline_share)));
  }
  if (!r.baselines.empty()) {
    absl::StrAppend(&out,
                    "on baseline: the share of a baseline (lr = 0) run's tokens that the method "
                    "drops or bounds.\n");
  }
}

void AppendLengths(const Replay& r, std::string& out) {
  std::string lines;
  for (const ReplayRow& row : r.numbers.rows) {
    if (row.kept.value == 1 || row.kept.value == 0) continue;
    absl::StrAppendFormat(&lines, "%-21s %-20s", RowName(row), ThresholdText(row.variant));
    for (const LengthShare& share : row.by_length)
      absl::StrAppendFormat(&lines, " %9s", Percent(share.kept));
    lines += "\n";
  }
  if (lines.empty()) return;
  absl::StrAppendFormat(&out, "\n%-42s", "kept % by tokens of the completion");
  for (const LengthShare& share : r.numbers.rows.front().by_length) {
    absl::StrAppendFormat(&out, " %9s", share.label);
  }
  absl::StrAppend(&out, "\n", lines);
}

ordered_json VariantJson(const ReplayRow& row) {
  ordered_json lengths = ordered_json::array();
  for (const LengthShare& share : row.by_length) {
    lengths.push_back({{"label", share.label},
                       {"tokens", share.num_tokens},
                       {"kept", Number(share.kept)},
                       {"mean_weight", Number(share.mean_weight)}});
  }
  return {{"method", row.variant.method},
          {"threshold", row.variant.threshold},
          {"null_rate", row.variant.baseline_rate},
          {"gradient_norm", Number(row.gradient_norm)},
          {"norm_ratio_to_off", ToJson(row.norm_ratio)},
          {"cosine_to_off", ToJson(row.cosine[0])},
          {"cosine_to_exact_token", ToJson(row.cosine[1])},
          {"cosine_to_exact", ToJson(row.cosine[2])},
          {"variance_over_completions", Number(row.variance)},
          {"variance_over_groups", Number(row.variance_by_group)},
          {"denominator", Number(row.denominator)},
          {"ess_fraction", ToJson(row.ess_fraction)},
          {"effective_tokens", Number(row.effective_tokens)},
          {"kept", ToJson(row.kept)},
          {"kept_positive", ToJson(row.kept_positive)},
          {"kept_negative", ToJson(row.kept_negative)},
          {"mean_weight_positive", ToJson(row.mean_weight_positive)},
          {"mean_weight_negative", ToJson(row.mean_weight_negative)},
          {"by_length", lengths},
          {"null_share", Number(row.baseline_share)}};
}

}  // namespace

std::string ReplayTable(const Replay& replay) {
  std::string out = OpeningText(replay.path, replay.capture);
  if (!replay.findings.empty()) return out + FindingsText(replay.findings);
  AppendFacts(replay, out);
  AppendGradients(replay, out);
  AppendTokens(replay, out);
  AppendLengths(replay, out);
  for (const std::string& note : replay.notes) {
    absl::StrAppend(&out, "no threshold from the baseline: ", note, "\n");
  }
  return out;
}

std::string ReplayJson(const Replay& r) {
  ordered_json json = OpeningJson("tandem-replay", r.path, r.capture, r.findings);
  if (r.findings.empty()) {
    json["trained"] = {{"tokens_with_advantage", r.numbers.num_tokens},
                       {"completions", r.numbers.num_completions},
                       {"groups", r.numbers.num_groups}};
    json["gradients"] = {{"num_parameters", r.num_parameters},
                         {"backward_passes", r.num_backward_passes},
                         {"squared_norm_relative_error", Number(r.relative_error)},
                         {"max_rescore_difference", Number(r.max_rescore_difference)}};
    json["exact_withheld"] = r.numbers.exact_withheld;
    if (!r.baselines.empty()) {
      json["null"] = {{"captures", r.baselines},
                      {"num_completions", r.baseline_noise.num_completions()},
                      {"num_tokens", r.baseline_noise.num_tokens()},
                      {"delta_standard_deviation", Number(r.baseline_noise.standard_deviation)},
                      {"notes", r.notes}};
    }
    ordered_json& rows = json["rows"] = ordered_json::array();
    for (const ReplayRow& row : r.numbers.rows) rows.push_back(VariantJson(row));
  }
  return json.dump(1, ' ', false, ordered_json::error_handler_t::replace);
}

}  // namespace tandem::drift
