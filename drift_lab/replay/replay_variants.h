// ReplayVariants: which corrections, at which thresholds, a replay evaluates. Pure.
//
// A threshold is text: the values of a method's threshold settings joined by ':', as in "2" for a
// ceiling or "0.5:5" for bounds. Methods without a setting that acts on the first update after
// sampling have none (docs/replay.md).
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "common/offpolicy/correction_method.h"
#include "drift_lab/replay/baseline_noise.h"

namespace tandem::drift {

struct ThresholdList {
  std::string_view method;          // of offpolicy::NamedMethods
  std::string_view settings;        // "correction.min_weight:correction.max_weight"
  std::string_view values;          // thresholds, the method's own first, separated by blanks
  NullRule rule = NullRule::kNone;  // how a null run chooses it
};

// One entry for every named method that has a threshold.
std::span<const ThresholdList> ThresholdLists();

struct ReplayVariant {
  std::string method;
  std::string threshold;  // empty: the method has none
  double null_rate = 0;   // false-mask rate the threshold was chosen for; 0: it was not chosen so
  offpolicy::MethodOptions options;
};

// The references, in this order, stand before all others: without any correction; token weights
// without a ceiling; product weights without a ceiling, the unbiased estimator.
inline constexpr std::string_view kNoCorrection = "off", kExactToken = "exact_token",
                                  kExact = "exact";
inline constexpr size_t kNumReferences = 3;

struct VariantSelection {
  std::vector<std::string> methods;  // empty: every named method
  std::vector<std::string>
      thresholds;    // in the place of the listed ones, for every method of `methods`
  bool all = false;  // every listed threshold, not only the method's own
};

//   NOT_FOUND         no such method; the message lists the names
//   INVALID_ARGUMENT  thresholds without methods; a threshold for a method that has none, of the
//   wrong
//                     number of values, or out of range (named)
absl::StatusOr<std::vector<ReplayVariant>> SelectVariants(const VariantSelection& selection);

// The same methods at the thresholds that `floor` gives for each rate; methods that have no such
// rule are left out. What could not be chosen is said in `notes`.
std::vector<ReplayVariant> NullVariants(const std::vector<std::string>& methods,
                                        const NullFloor& floor, std::span<const double> rates,
                                        std::vector<std::string>& notes);

}  // namespace tandem::drift
