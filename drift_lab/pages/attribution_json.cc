#include <nlohmann/json.hpp>

#include "drift_lab/pages/attribution_report.h"
#include "drift_lab/pages/report_parts.h"

namespace tandem::drift {
namespace {

using nlohmann::ordered_json;

ordered_json MetricsJson(const offpolicy::DriftMetrics& metrics) {
  ordered_json json = ordered_json::object();
  for (const offpolicy::DriftNumber& number : metrics.numbers) {
    ordered_json& of = json[std::string(number.name)] = ToJson(number.interval);
    if (number.withheld != offpolicy::Withheld::kNothing) {
      of["withheld"] = std::string(WithheldReason(number.withheld));
    }
  }
  return json;
}

ordered_json SplitsJson(const Attribution& a) {
  ordered_json json = ordered_json::object();
  for (const auto& [by, buckets] : a.splits) {
    ordered_json& list = json[std::string(SplitName(by))] = ordered_json::array();
    for (const offpolicy::DriftBucket& bucket : buckets) {
      list.push_back({{"label", bucket.label},
                      {"tokens", bucket.sums.tokens},
                      {"mean_delta", ToJson(bucket.mean_delta)},
                      {"mean_abs_delta", ToJson(bucket.mean_abs_delta)},
                      {"k3", ToJson(bucket.k3)},
                      {"mean_w", ToJson(bucket.mean_w)}});
    }
  }
  return json;
}

ordered_json ShareJson(const MeasureShare& share) {
  ordered_json json = ToJson(share.share);
  json["first"] = Number(share.first);
  json["last"] = Number(share.last);
  return json;
}

ordered_json PartsJson(const Attribution& a) {
  ordered_json list = ordered_json::array();
  for (const PartShare& share : a.shares.parts) {
    list.push_back({{"part", std::string(PartName(share.part))},
                    {"description", std::string(PartDescription(share.part))},
                    {"mean", ToJson(share.mean)},
                    {"mean_abs_alone", ToJson(share.mean_abs)},
                    {"square_share", ShareJson(share.shares[kSquare])},
                    {"k3_share", ShareJson(share.shares[kK3])},
                    {"tail_share", ShareJson(share.shares[kTail])}});
  }
  return list;
}

ordered_json AdditiveJson(const offpolicy::AdditiveSplit& split) {
  ordered_json json = {{"num_tokens", split.num_tokens}, {"num_missing", split.num_missing}};
  for (int i = 0; i < offpolicy::kNumSplitParts; ++i) {
    const offpolicy::SplitPartNumbers& part = split.parts[static_cast<size_t>(i)];
    json[std::string(SplitPartName(static_cast<offpolicy::SplitPart>(i)))] = {
        {"mean", ToJson(part.mean)},
        {"mean_abs", ToJson(part.mean_abs)},
        {"square_share", ToJson(part.square_share)}};
  }
  return json;
}

const char* KindName(StrengthKind kind) {
  return kind == StrengthKind::kNone       ? "none"
         : kind == StrengthKind::kInterval ? "interval"
                                           : "exact";
}

// The record, the number of hypotheses about it that were replayed, and what that left.
ordered_json DiagnosisJson(const RecordDiagnosis& diagnosis, const SamplerDiagnosis& sampler) {
  const auto fit = [](const Fit& of) -> ordered_json {
    return {{"mean_abs", Number(of.mean_abs)}, {"matched_share", Number(of.matched)}};
  };
  ordered_json candidates = ordered_json::array();
  for (const SamplerCandidate& candidate : sampler.candidates) {
    candidates.push_back({{"cause", std::string(PartName(candidate.cause.part))},
                          {"label", candidate.cause.label},
                          {"gain_nats", Number(candidate.gain)}});
  }
  ordered_json json = {{"before", fit(diagnosis.before)},
                       {"after", fit(diagnosis.after)},
                       {"explained", diagnosis.explained},
                       {"num_hypotheses", diagnosis.num_tries},
                       {"draws", {{"z", Number(sampler.z)}, {"candidates", candidates}}}};
  if (diagnosis.noise.num_tokens > 0) {
    json["noise"] = {{"believed", diagnosis.noise.believed()},
                     {"sigma", ToJson(diagnosis.noise.sigma)},
                     {"tail_probability", ToJson(diagnosis.noise.tail_probability)},
                     {"tail_factor", ToJson(diagnosis.noise.tail_factor)},
                     {"distance", Number(diagnosis.noise.distance)},
                     {"largest_distance", Number(diagnosis.noise.largest_distance)},
                     {"dependence_z", Number(diagnosis.noise.dependence)},
                     {"repeated_share", Number(diagnosis.noise.repeated)}};
  }
  return json;
}

ordered_json VerdictJson(const Verdict& verdict) {
  ordered_json named = ordered_json::array(), open = ordered_json::array();
  for (const NamedCause& cause : verdict.named) {
    named.push_back({{"cause", cause.cause},
                     {"label", cause.label},
                     {"strength_kind", KindName(cause.kind)},
                     {"strength", ToJson(cause.strength)},
                     {"square_share", ToJson(cause.share)},
                     {"evidence", cause.evidence}});
  }
  for (const OpenQuestion& question : verdict.open) {
    open.push_back({{"what", question.what}, {"deciding_measurement", question.deciding}});
  }
  return {{"nothing_to_explain", verdict.nothing_to_explain},
          {"named", named},
          {"open", open},
          {"unexplained_square_share", ToJson(verdict.unexplained)}};
}

}  // namespace

std::string AttributionJson(const Attribution& a) {
  ordered_json json = OpeningJson("tandem-attribution", a.path, a.capture, a.findings);
  if (a.findings.empty()) {
    json["metrics"] = {{"by_completion", MetricsJson(a.by_sequence)},
                       {"by_group", MetricsJson(a.by_group)}};
    json["splits"] = SplitsJson(a);
    json["total"] = {{"mean", ToJson(a.shares.total_mean)},
                     {"mean_abs", ToJson(a.shares.total_mean_abs)},
                     {"mean_square", ToJson(a.shares.totals[kSquare])},
                     {"k3", ToJson(a.shares.totals[kK3])},
                     {"tail_threshold", Number(a.shares.tail_threshold)},
                     {"num_tokens", a.shares.num_tokens},
                     {"num_missing", a.shares.num_missing}};
    json["parts"] = PartsJson(a);
    json["additive_split"] = AdditiveJson(a.additive);
    json["alone"] = {{"num_completions", a.alone.num_completions},
                     {"num_tokens", a.alone.num_tokens},
                     {"max_abs", Number(a.alone.max_abs)}};
    json["record"] = DiagnosisJson(a.ablation.diagnosis, a.ablation.sampler);
    json["verdict"] = VerdictJson(a.verdict);
  }
  return json.dump(1, ' ', false, ordered_json::error_handler_t::replace);
}

}  // namespace tandem::drift
