#include "drift_lab/pages/report_parts.h"

#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace tandem::drift {

using nlohmann::ordered_json;

ordered_json ToJson(const offpolicy::Interval& interval) {
  return {{"value", Number(interval.value)},
          {"low", Number(interval.low)},
          {"high", Number(interval.high)}};
}

ordered_json FindingsJson(std::span<const ConsistencyFinding> findings) {
  ordered_json json = ordered_json::array();
  for (const ConsistencyFinding& finding : findings) {
    json.push_back({{"fault", std::string(DiscreteFaultName(finding.fault))},
                    {"message", finding.message},
                    {"num_completions", finding.num_completions}});
  }
  return json;
}

std::string NumberText(double value, int digits) {
  return std::isfinite(value) ? absl::StrFormat("%.*g", digits, value) : "-";
}

std::string WithBounds(const offpolicy::Interval& interval, int digits) {
  if (!interval.known()) return NumberText(interval.value, digits);
  return absl::StrCat(NumberText(interval.value, digits), " [", NumberText(interval.low, digits),
                      ", ", NumberText(interval.high, digits), "]");
}

std::string Percent(double share) {
  if (!std::isfinite(share)) return "-";
  return absl::StrFormat("%.1f", std::abs(share) < 5e-4 ? 0.0 : 100 * share);  // no "-0.0"
}

std::string OpeningText(const std::string& path, const offpolicy::Capture& capture) {
  std::string out;
  if (!capture.manifest.injected.empty()) out = "FAULTS WERE INJECTED into this capture:\n";
  for (const std::string& fault : capture.manifest.injected) {
    absl::StrAppend(&out, "  ", fault, "\n");
  }
  return absl::StrCat(out, path, ": step ", capture.manifest.step, ", ", capture.num_completions(),
                      " completions in ", capture.num_groups(), " groups, ", capture.num_tokens(),
                      " tokens\n");
}

std::string FindingsText(std::span<const ConsistencyFinding> findings) {
  std::string out = "\nNot comparable. This is a discrete fault, not drift; no number is given.\n";
  for (const ConsistencyFinding& finding : findings) {
    absl::StrAppend(&out, "  ", std::string(DiscreteFaultName(finding.fault)), ": ",
                    finding.message, "\n");
  }
  return out;
}

}  // namespace tandem::drift
