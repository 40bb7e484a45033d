// The result of a sensitivity study as a table for a terminal, as JSON, and its plan as a piece of a
// run file. Pure.
#pragma once

#include <string>

#include "drift_lab/sensitivity/sensitivity.h"

namespace tandem::drift {

// A row for each layer with the k3 of its sites, sums by site, the dearest places with intervals, the
// whole, and the plan where there is one.
std::string SensitivityTable(const Sensitivity& sensitivity, const QuantisationOptions& whole);

// One object; NaN and unknown bounds are null. docs/quantised_rollouts.md describes the fields.
std::string SensitivityJson(const Sensitivity& sensitivity, const QuantisationOptions& whole);

// The plan as options of server.engine: the format of the whole with the places that stay as they
// are as exceptions, or, where those are the more, with the quantised ones.
std::string PlanYaml(const Sensitivity& sensitivity, const QuantisationOptions& whole);

}  // namespace tandem::drift
