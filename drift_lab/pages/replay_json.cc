#include <cmath>
#include <nlohmann/json.hpp>

#include "drift_lab/pages/report_parts.h"
#include "drift_lab/pages/replay_report.h"

namespace tandem::drift {
namespace {

using nlohmann::ordered_json;

ordered_json RowJson(const ReplayRow& row) {
  ordered_json lengths = ordered_json::array();
  for (const LengthShare& share : row.by_length) {
    lengths.push_back({{"label", share.label},
                       {"tokens", share.num_tokens},
                       {"kept", Number(share.kept)},
                       {"mean_weight", Number(share.mean_weight)}});
  }
  return {{"method", row.variant.method},
          {"threshold", row.variant.threshold},
          {"null_rate", row.variant.null_rate},
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
          {"null_share", Number(row.null_share)}};
}

ordered_json FindingsJson(const Replay& replay) {
  ordered_json findings = ordered_json::array();
  for (const GateFinding& finding : replay.findings) {
    findings.push_back({{"fault", std::string(DiscreteFaultName(finding.fault))},
                        {"message", finding.message},
                        {"num_completions", finding.num_completions}});
  }
  return findings;
}

}  // namespace

std::string ReplayJson(const Replay& r) {
  ordered_json json = {{"format", "tandem-replay"},
                       {"format_version", 1},
                       {"capture", r.path},
                       {"step", r.capture.manifest.step},
                       {"injected", r.capture.manifest.injected},
                       {"num_groups", r.capture.num_groups()},
                       {"num_completions", r.capture.num_completions()},
                       {"num_tokens", r.capture.num_tokens()},
                       {"comparable", r.findings.empty()},
                       {"findings", FindingsJson(r)}};
  if (r.findings.empty()) {
    json["trained"] = {{"tokens_with_advantage", r.numbers.num_tokens},
                       {"completions", r.numbers.num_completions},
                       {"groups", r.numbers.num_groups}};
    json["gradients"] = {{"num_parameters", r.num_parameters},
                         {"backward_passes", r.num_backward_passes},
                         {"squared_norm_relative_error", Number(r.relative_error)},
                         {"max_rescore_difference", Number(r.max_rescore_difference)}};
    json["exact_withheld"] = r.numbers.exact_withheld;
    if (!r.nulls.empty()) {
      json["null"] = {{"captures", r.nulls},
                      {"num_completions", r.null_floor.num_completions()},
                      {"num_tokens", r.null_floor.num_tokens()},
                      {"delta_standard_deviation", Number(r.null_floor.noise)},
                      {"notes", r.notes}};
    }
    ordered_json& rows = json["rows"] = ordered_json::array();
    for (const ReplayRow& row : r.numbers.rows) rows.push_back(RowJson(row));
  }
  return json.dump(1, ' ', false, ordered_json::error_handler_t::replace);
}

}  // namespace tandem::drift
