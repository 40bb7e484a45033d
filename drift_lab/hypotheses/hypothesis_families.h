// The families of hypotheses about a record: each turns what a replay leaves into the member of its
// family that leaves least. One per fault of drift.md section 4 that changes what a forward
// computes.
#pragma once

#include <span>

#include "absl/status/statusor.h"
#include "drift_lab/hypotheses/hypothesis_search.h"

namespace tandem::drift {

// The best member on top of `base`, or `base` itself when none leaves less. `base` may hold a
// member of the same family: the search goes on from it.
using FamilySearch = absl::StatusOr<Attempt> (*)(HypothesisSearch& search, const Attempt& base);

// Undisclosed transforms (transform_families.cc). Temperature by Gauss-Newton on log(1/T): the
// slope of a log-prob is log p + H. Filters by their mass: a token's record is log(1/kept) above
// the replay.
absl::StatusOr<Attempt> SearchTemperature(HypothesisSearch& search, const Attempt& base);
absl::StatusOr<Attempt> SearchTopP(HypothesisSearch& search, const Attempt& base);
absl::StatusOr<Attempt> SearchTopK(HypothesisSearch& search, const Attempt& base);
absl::StatusOr<Attempt> SearchMinP(HypothesisSearch& search, const Attempt& base);
// Both at once, as a generation_config.json that nobody read sets them: each alone hides the other.
absl::StatusOr<Attempt> SearchTemperatureAndFilter(HypothesisSearch& search, const Attempt& base);

// Hidden precision (precision_families.cc): an error halves with every bit, so one replay says
// about how many, and its neighbours are tried.
absl::StatusOr<Attempt> SearchBodyBits(HypothesisSearch& search, const Attempt& base);
absl::StatusOr<Attempt> SearchHeadBits(HypothesisSearch& search, const Attempt& base);
absl::StatusOr<Attempt> SearchKvBits(HypothesisSearch& search, const Attempt& base);
absl::StatusOr<Attempt> SearchRotaryBits(HypothesisSearch& search, const Attempt& base);
absl::StatusOr<Attempt> SearchKvQuantisation(HypothesisSearch& search, const Attempt& base);

// Other weights and other inputs (weight_families.cc): every version before that the capture
// carries, and the model directory's: wholly, in part along the way, and in one tensor, found by
// halving the set.
absl::StatusOr<Attempt> SearchWeights(HypothesisSearch& search, const Attempt& base);
absl::StatusOr<Attempt> SearchStalePrefix(HypothesisSearch& search, const Attempt& base);
absl::StatusOr<Attempt> SearchFirstId(HypothesisSearch& search, const Attempt& base);

// All of them, the cheap ones first.
std::span<const FamilySearch> AllFamilies();

// The one that found `part`.
FamilySearch FamilyOf(Part part);

}  // namespace tandem::drift
