// Numbers and intervals as the lab's JSON carries them: nine significant digits, null for NaN.
#pragma once

#include <nlohmann/json.hpp>

#include "common/base/json.h"
#include "common/statistics/cluster_bootstrap.h"

namespace tandem::drift {

inline nlohmann::ordered_json Number(double value) {
  return JsonNumberAs<nlohmann::ordered_json>(value);
}

inline nlohmann::ordered_json ToJson(const offpolicy::Interval& interval) {
  return {{"value", Number(interval.value)},
          {"low", Number(interval.low)},
          {"high", Number(interval.high)}};
}

}  // namespace tandem::drift
