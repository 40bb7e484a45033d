// The families of hypotheses about a record, one for each fault that changes what a forward pass
// computes (docs/calibration.md). A family's search takes the difference that a replay leaves, and
// returns the member of the family that leaves the least of it.
#pragma once

#include <span>

#include "absl/status/statusor.h"
#include "drift_lab/hypotheses/hypothesis_search.h"

namespace tandem::drift {

// Returns the best member on top of `base`, or `base` itself if none leaves less. `base` may
// contain a member of the same family; the search then continues from it.
using FamilySearch = absl::StatusOr<Attempt> (*)(HypothesisSearch& search, const Attempt& base);

// Undisclosed transforms (transform_families.cc). The temperature is found by Gauss-Newton steps on
// log(1/T), along which a log-prob has the slope log p + H. A filter is found by its retained
// probability mass m: the record of a token is log(1/m) above its replay.
absl::StatusOr<Attempt> SearchTemperature(HypothesisSearch& search, const Attempt& base);
absl::StatusOr<Attempt> SearchTopP(HypothesisSearch& search, const Attempt& base);
absl::StatusOr<Attempt> SearchTopK(HypothesisSearch& search, const Attempt& base);
absl::StatusOr<Attempt> SearchMinP(HypothesisSearch& search, const Attempt& base);
// Both at once, as a generation_config.json may set them; searched alone, each hides the other.
absl::StatusOr<Attempt> SearchTemperatureAndFilter(HypothesisSearch& search, const Attempt& base);

// Hidden precision (precision_families.cc). A rounding error halves with every bit, so one replay
// gives the approximate number of bits, and its neighbours are tried.
absl::StatusOr<Attempt> SearchBodyBits(HypothesisSearch& search, const Attempt& base);
absl::StatusOr<Attempt> SearchHeadBits(HypothesisSearch& search, const Attempt& base);
absl::StatusOr<Attempt> SearchKvBits(HypothesisSearch& search, const Attempt& base);
absl::StatusOr<Attempt> SearchRotaryBits(HypothesisSearch& search, const Attempt& base);
absl::StatusOr<Attempt> SearchKvQuantisation(HypothesisSearch& search, const Attempt& base);

// Undisclosed number formats of the weights (format_family.cc): a scheme for the whole model, then
// without the sites and layers whose quantisation does not help.
absl::StatusOr<Attempt> SearchWeightFormat(HypothesisSearch& search, const Attempt& base);

// Other weights and other inputs (weight_families.cc). The sources are the earlier versions that
// the capture carries and the weights of the model directory: as a whole, partly along the way to
// them, or in one tensor, which is found by halving the set.
absl::StatusOr<Attempt> SearchWeights(HypothesisSearch& search, const Attempt& base);
absl::StatusOr<Attempt> SearchStalePrefix(HypothesisSearch& search, const Attempt& base);
absl::StatusOr<Attempt> SearchFirstId(HypothesisSearch& search, const Attempt& base);

// All families, the cheap ones first.
std::span<const FamilySearch> AllFamilies();

// The family whose members are of `part`.
FamilySearch FamilyOf(Part part);

}  // namespace tandem::drift
