#include "drift_lab/pages/referee_report.h"

#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "drift_lab/pages/engine_options.h"
#include "drift_lab/pages/report_parts.h"

namespace tandem::drift {
namespace {

using nlohmann::ordered_json;

ordered_json SizeJson(const ResidualSize& size) {
  return {{"num_tokens", size.num_tokens},
          {"mean_abs", Number(size.mean_abs)},
          {"mean", Number(size.mean)},
          {"rms", Number(size.rms)},
          {"largest", Number(size.largest)},
          {"times_bf16", Number(size.in_scale)},
          {"times_bf16_bounded", Number(size.bounded)},
          {"num_extreme", size.num_extreme},
          {"tail_share", Number(size.tail)},
          {"correlation_with_bf16", Number(size.like_bf16)}};
}

bool IsFound(const SideReport& side) {
  return side.status == SideStatus::kNamed || side.status == SideStatus::kOneOf;
}

// The options of the side's engine behind what was found, each once: "vllm: --kv-cache-dtype".
std::string OptionsText(const SideReport& side) {
  std::vector<std::string> options;
  const auto add = [&](const std::string& of_cause) {
    if (!of_cause.empty() && std::ranges::find(options, of_cause) == options.end())
      options.push_back(of_cause);
  };
  if (IsFound(side)) {
    for (const RefereeCause& cause : side.causes) add(EngineOptions(side.engine, cause.cause));
  }
  if (side.draws_checked && !side.draws.follows) {
    for (const std::string& cause : side.draws.best.causes) add(EngineOptions(side.engine, cause));
  }
  return options.empty() ? "" : absl::StrCat(side.engine, ": ", absl::StrJoin(options, "; "));
}

ordered_json CauseJson(const RefereeCause& cause) {
  return {{"cause", cause.cause},
          {"text", cause.text},
          {"explained_share", ToJson(cause.explained.share)},
          {"coefficient", ToJson(cause.explained.coefficient)},
          {"correlation", Number(cause.explained.correlation)},
          {"left", SizeJson(cause.left)},
          {"advice", cause.advice}};
}

ordered_json RefereeSideJson(const SideReport& side) {
  ordered_json causes = ordered_json::array();
  for (const RefereeCause& cause : side.causes) causes.push_back(CauseJson(cause));
  ordered_json json = {{"side", SignSideName(side.side)},
                       {"engine", side.engine},
                       {"status", SideStatusName(side.status)},
                       {"sentence", side.sentence},
                       {"claimed", SettingsText(side.claimed)},
                       {"gap", SizeJson(side.gap)},
                       {"first_tokens", Number(side.first_tokens)},
                       {"causes", causes},
                       {"num_tried", side.num_tried},
                       {"num_left", side.num_left},
                       {"tried", side.tried},
                       {"advice", side.advice},
                       {"options", OptionsText(side)}};
  if (side.draws_checked) {
    json["draws"] = {{"follow_claims", side.draws.follows},
                     {"sentence", side.draws_sentence},
                     {"best", SettingsText(side.draws.best.settings)},
                     {"causes", side.draws.best.causes},
                     {"gain_nats", Number(side.draws.gain)},
                     {"over_rival_nats", Number(side.draws.over_rival)}};
  }
  return json;
}

}  // namespace

std::string RefereeTable(const RefereeReport& report) {
  std::string out =
      absl::StrFormat("\nreferee: %s\n  %d of %d drawn tokens in %d rows, %.0f s", report.model,
                      report.num_tokens, report.num_drawn, report.num_rows, report.seconds);
  if (report.bf16_mean_abs > 0) {
    absl::StrAppendFormat(&out, "; its own bf16 differs from its fp32 by %.2g nats a token",
                          report.bf16_mean_abs);
  }
  absl::StrAppend(&out, "\n\n", report.headline, "\n");
  for (const SideReport& side : report.sides) {
    if (side.status == SideStatus::kNoValues) continue;
    absl::StrAppendFormat(&out, "\n  %-10s %-13s %s\n", SignSideName(side.side),
                          SideStatusName(side.status), side.sentence);
    if (!side.draws_sentence.empty()) absl::StrAppend(&out, "    ", side.draws_sentence, "\n");
    if (!side.tried.empty()) {
      absl::StrAppend(&out, "    tried: ", absl::StrJoin(side.tried, ", "), "\n");
    }
    if (!side.advice.empty()) absl::StrAppend(&out, "    -> ", side.advice, "\n");
    if (const std::string options = OptionsText(side); !options.empty()) {
      absl::StrAppend(&out, "    options of ", options, "\n");
    }
  }
  return out;
}

ordered_json RefereeJson(const RefereeReport& report) {
  ordered_json sides = ordered_json::array();
  for (const SideReport& side : report.sides) sides.push_back(RefereeSideJson(side));
  return {{"format", "tandem-referee"},
          {"model", report.model},
          {"weights", report.weights},
          {"num_rows", report.num_rows},
          {"num_tokens", report.num_tokens},
          {"num_drawn", report.num_drawn},
          {"bf16_mean_abs", Number(report.bf16_mean_abs)},
          {"most_rounding", {{"times_bf16", kMostRounding}, {"tail_share", kMostTail}}},
          {"headline", report.headline},
          {"sides", sides},
          {"seconds", Number(report.seconds)}};
}

}  // namespace tandem::drift
