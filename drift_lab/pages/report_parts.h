// What the reports of the lab share: numbers and intervals in JSON (nine significant digits, null
// for NaN) and in tables ("-" for NaN), lines that fit, and the opening lines. Pure.
#pragma once

#include <cstddef>
#include <nlohmann/json.hpp>
#include <span>
#include <string>

#include "common/base/json.h"
#include "common/capture/capture.h"
#include "common/statistics/cluster_bootstrap.h"
#include "drift_lab/recompute/consistency.h"
#include "drift_lab/records/records_summary.h"

namespace tandem::drift {

inline nlohmann::ordered_json Number(double value) {
  return JsonNumberAs<nlohmann::ordered_json>(value);
}
nlohmann::ordered_json ToJson(const offpolicy::Interval& interval);

// `digits` significant digits; with bounds, "1.5 [1.2, 1.9]" if the interval is known.
std::string NumberText(double value, int digits = 3);
std::string WithBounds(const offpolicy::Interval& interval, int digits = 3);
std::string Percent(double share);  // one decimal, without a percent sign

// Breaks `text` into lines of at most 100 columns. The first begins at column `begun`, the others are
// indented by `indent`.
std::string WrapText(const std::string& text, size_t begun, size_t indent);

// The first lines of a table: a warning if faults were injected, and the capture's size.
std::string OpeningText(const std::string& path, const offpolicy::Capture& capture);
// The first fields of a JSON report: its format, the capture and the findings.
nlohmann::ordered_json OpeningJson(const char* format, const std::string& path,
                                   const offpolicy::Capture& capture,
                                   std::span<const ConsistencyFinding> findings);
// The findings of the consistency checks.
std::string FindingsText(std::span<const ConsistencyFinding> findings);
// What is strange about the numbers of a records file (`tandem drift check`, `tandem drift import`).
nlohmann::ordered_json FindingsJson(std::span<const RecordsFinding> findings);

}  // namespace tandem::drift
