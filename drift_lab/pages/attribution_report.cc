#include "drift_lab/pages/attribution_report.h"

#include <cmath>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "drift_lab/pages/report_parts.h"

namespace tandem::drift {
namespace {

using offpolicy::Interval;

std::string PercentWithBounds(const Interval& interval) {
  if (!interval.known()) return Percent(interval.value);
  return absl::StrFormat("%s [%s, %s]", Percent(interval.value), Percent(interval.low),
                         Percent(interval.high));
}

// The shares in the two extreme orders in which parts can be switched.
std::string OrderBounds(const MeasureShare& share) {
  return std::isfinite(share.first)
             ? absl::StrCat(Percent(share.first), " .. ", Percent(share.last))
             : "";
}

void AppendHeader(const Attribution& a, std::string& out) {
  const offpolicy::CaptureManifest& m = a.capture.manifest;
  absl::StrAppend(&out, OpeningText(a.path, a.capture));
  for (const offpolicy::CapturedServer& server : m.servers) {
    absl::StrAppend(&out, "server ", server.address, ": ", server.dtype, " ", server.numerics, " (",
                    server.instruction_set, ")\n");
  }
  absl::StrAppend(&out, "trainer: ",
                  m.trainer.dtype.empty() ? "none recorded; scored here in fp32"
                                          : absl::StrCat(m.trainer.dtype, " ", m.trainer.numerics,
                                                         " (", m.trainer.instruction_set, ")"),
                  "\n");
}

void AppendMetrics(const Attribution& a, std::string& out) {
  absl::StrAppendFormat(&out, "\n%-22s %-34s %s\n", "delta = trainer - server",
                        "95 % by completion", "95 % by group");
  for (const char* name : {"mean_delta", "mean_abs_delta", "k3", "chi2", "ess_fraction", "mean_w",
                           "abs_delta_p99", "log_ppl_gap"}) {
    absl::StrAppendFormat(&out, "  %-20s   %-34s %s\n", name,
                          WithBounds(a.by_sequence.Number(name).interval),
                          WithBounds(a.by_group.Number(name).interval));
  }
  absl::StrAppendFormat(
      &out, "  max abs(delta) %s, largest weight %s, calibration z %s over %d tokens\n",
      NumberText(a.by_sequence.Get("max_abs_delta")), NumberText(a.by_sequence.Get("max_weight")),
      NumberText(a.by_sequence.Get("calibration_z")), a.shares.num_tokens);
}

void AppendShares(const Attribution& a, std::string& out) {
  absl::StrAppendFormat(&out, "\n%-15s %-29s %-24s %-8s %-7s %s\n", "part",
                        "mean abs alone, nats [95 %]", "% of mean square [95 %]", "% of k3",
                        "% tail", "first .. last");
  for (const PartShare& share : a.shares.parts) {
    absl::StrAppendFormat(&out, "%-15s %-29s %-24s %-8s %-7s %s\n",
                          std::string(PartName(share.part)), WithBounds(share.mean_abs),
                          PercentWithBounds(share.square()), Percent(share.shares[kK3].share.value),
                          Percent(share.shares[kTail].share.value),
                          OrderBounds(share.shares[kSquare]));
  }
  const char* const all = a.shares.total_mean_abs.value > kLogprobFloor ? "100" : "-";
  absl::StrAppendFormat(&out, "%-15s %-29s %-24s %-8s %-7s tail: abs(delta) > %s\n", "all",
                        WithBounds(a.shares.total_mean_abs), all, all, all,
                        NumberText(a.shares.tail_threshold));
  absl::StrAppendFormat(
      &out, "  batch composition: %d completions (%d tokens) decoded alone differ by at most %s\n",
      a.alone.num_completions, a.alone.num_tokens, NumberText(a.alone.max_abs));
  if (a.shares.num_missing > 0) {
    absl::StrAppendFormat(&out, "  %d tokens are left out: some step could not score them\n",
                          a.shares.num_missing);
  }
}

void AppendAdditive(const Attribution& a, std::string& out) {
  absl::StrAppend(&out, "\ndelta = record + engine + cast + staleness, per token\n");
  for (int i = 0; i < offpolicy::kNumSplitParts; ++i) {
    const offpolicy::SplitPartNumbers& part = a.additive.parts[static_cast<size_t>(i)];
    absl::StrAppendFormat(&out, "  %-10s mean %-32s mean abs %s\n",
                          std::string(SplitPartName(static_cast<offpolicy::SplitPart>(i))),
                          WithBounds(part.mean), WithBounds(part.mean_abs));
  }
}

void AppendVerdict(const Attribution& a, std::string& out) {
  const Verdict& verdict = a.verdict;
  absl::StrAppend(&out, "\nverdict: ");
  if (verdict.nothing_to_explain) {
    absl::StrAppend(&out, a.shares.total_mean_abs.value == 0
                              ? "the gap is exactly 0: nothing to explain\n"
                              : "the gap is what fp32 log-probs cannot say: nothing to explain\n");
  } else if (verdict.named.empty()) {
    absl::StrAppend(&out, "no cause is named\n");
  } else {
    absl::StrAppend(&out, "\n");
  }
  for (const NamedCause& cause : verdict.named) {
    absl::StrAppendFormat(&out, "  %s%s: %s %% of the mean square; %s\n",
                          std::string(PartName(cause.part)),
                          cause.label.empty() ? "" : absl::StrCat(" (", cause.label, ")"),
                          PercentWithBounds(cause.share), cause.evidence);
    if (cause.kind != StrengthKind::kNone) {
      absl::StrAppendFormat(
          &out, "    strength %s%s\n", WithBounds(cause.strength),
          cause.kind == StrengthKind::kExact ? " (bounds: values that give the same record)" : "");
    }
  }
  if (std::isfinite(verdict.unexplained.value)) {
    absl::StrAppendFormat(&out, "  unexplained: %s %%\n", PercentWithBounds(verdict.unexplained));
  }
  for (const OpenQuestion& question : verdict.open) {
    absl::StrAppend(&out, "  open: ", question.what, "\n    what would decide: ", question.deciding,
                    "\n");
  }
}

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
    named.push_back({{"cause", std::string(PartName(cause.part))},
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

std::string AttributionTable(const Attribution& attribution) {
  std::string out;
  AppendHeader(attribution, out);
  if (!attribution.findings.empty()) return out + FindingsText(attribution.findings);
  AppendMetrics(attribution, out);
  AppendShares(attribution, out);
  AppendAdditive(attribution, out);
  AppendVerdict(attribution, out);
  return out;
}

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
