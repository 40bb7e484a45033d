#include "drift_lab/pages/report_parts.h"

#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"

namespace tandem::drift {

using nlohmann::ordered_json;

ordered_json ToJson(const offpolicy::Interval& interval) {
  return {{"value", Number(interval.value)},
          {"low", Number(interval.low)},
          {"high", Number(interval.high)}};
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

std::string WrapText(const std::string& text, size_t begun, size_t indent) {
  constexpr size_t kLineWidth = 100;
  std::string out;
  size_t column = begun;
  bool first = true;
  for (const absl::string_view word : absl::StrSplit(text, ' ')) {
    if (!first && column + 1 + word.size() > kLineWidth) {
      absl::StrAppend(&out, "\n", std::string(indent, ' '));
      column = indent;
    } else if (!first) {
      out += ' ';
      ++column;
    }
    absl::StrAppend(&out, word);
    column += word.size();
    first = false;
  }
  return out;
}

std::string OpeningText(const std::string& path, const offpolicy::Capture& capture) {
  std::string out;
  if (!capture.manifest.injected.empty()) out = "FAULTS WERE INJECTED into this capture:\n";
  for (const std::string& fault : capture.manifest.injected) {
    absl::StrAppend(&out, "  ", fault, "\n");
  }
  return absl::StrCat(out, path, ": step ", capture.manifest.step, ", ", capture.num_completions(),
                      " completions in ", capture.num_groups(), " groups, ", capture.num_drawn(),
                      " tokens\n");
}

ordered_json OpeningJson(const char* format, const std::string& path,
                         const offpolicy::Capture& capture,
                         std::span<const ConsistencyFinding> findings) {
  ordered_json list = ordered_json::array();
  for (const ConsistencyFinding& finding : findings) {
    list.push_back({{"fault", std::string(DiscreteFaultName(finding.fault))},
                    {"message", finding.message},
                    {"num_completions", finding.num_completions}});
  }
  return {{"format", format},
          {"format_version", 1},
          {"capture", path},
          {"step", capture.manifest.step},
          {"injected", capture.manifest.injected},
          {"num_groups", capture.num_groups()},
          {"num_completions", capture.num_completions()},
          {"num_tokens", capture.num_drawn()},
          {"comparable", findings.empty()},
          {"findings", list}};
}

std::string FindingsText(std::span<const ConsistencyFinding> findings) {
  std::string out = "\nNot comparable. This is a discrete fault, not drift; no number is given.\n";
  for (const ConsistencyFinding& finding : findings) {
    absl::StrAppend(&out, "  ", std::string(DiscreteFaultName(finding.fault)), ": ",
                    finding.message, "\n");
  }
  return out;
}

ordered_json FindingsJson(std::span<const RecordsFinding> findings) {
  ordered_json list = ordered_json::array();
  for (const RecordsFinding& finding : findings) {
    list.push_back({{"kind", finding.kind},
                    {"column", finding.column},
                    {"count", finding.count},
                    {"text", finding.text}});
  }
  return list;
}

}  // namespace tandem::drift
