// What `tandem drift why RECORDS --model DIR` prints of the referee: text and JSON. Pure.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "drift_lab/referee/referee.h"

namespace tandem::drift {

std::string RefereeTable(const RefereeReport& report);

// {"format": "tandem-referee", ...}; docs/foreign_engines.md describes the fields.
nlohmann::ordered_json RefereeJson(const RefereeReport& report);

}  // namespace tandem::drift
