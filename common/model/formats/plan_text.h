// A QuantisationPlan as text, and back: what a server says of itself (GetInfo.weights), what trainers
// compare, and what captures keep. Pure.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "common/model/quantisation_plan.h"

namespace tandem {

// "dtype", or layers with equal formats together, as in "layers 0-2: int8, 3-29: qkv_proj int8, o_proj
// int8, gate_up_proj int8, down_proj dtype; head: int8; activations: auto", with "; kv: int8" where that
// is quantised. Equal plans give equal texts.
std::string PlanText(const QuantisationPlan& plan);

// Options of which MakeQuantisationPlan makes the plan again, for the model whose plan it was. Empty
// text is "dtype", of captures from before servers could quantise.
//   INVALID_ARGUMENT  not the text of a plan (the part that is none is quoted)
absl::StatusOr<QuantisationOptions> OptionsOfPlan(const std::string& text);

}  // namespace tandem
