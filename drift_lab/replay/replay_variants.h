// ReplayVariants: which corrections a replay evaluates, and at which thresholds. Pure.
//
// A threshold is text: the values of a method's threshold settings joined by ':', for instance "2"
// for a ceiling or "0.5:5" for bounds. A method without a setting that acts on the first update
// after sampling has no threshold (docs/replay.md).
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "common/offpolicy/correction_method.h"
#include "drift_lab/replay/baseline_noise.h"

namespace tandem::drift {

struct ReplayVariant {
  std::string method;
  std::string threshold;  // empty: the method has none
  // The false-mask rate that the threshold was chosen for on the baseline; 0: it is a listed one.
  double baseline_rate = 0;
  offpolicy::MethodOptions options;
};

// The references come before all other variants, in this order: no correction; token weights
// without a ceiling; product weights without a ceiling, which is the unbiased estimator.
inline constexpr std::string_view kNoCorrection = "off", kExactToken = "exact_token",
                                  kExact = "exact";
inline constexpr size_t kNumReferences = 3;

struct VariantSelection {
  std::vector<std::string> methods;     // empty: every named method
  std::vector<std::string> thresholds;  // replace the listed ones, for every method of `methods`
  bool all = false;                     // every listed threshold, not only the method's own
};

//   NOT_FOUND         no such method (the message lists the names)
//   INVALID_ARGUMENT  thresholds without methods; or a threshold for a method that has none, with
//                     the wrong number of values, or out of range
absl::StatusOr<std::vector<ReplayVariant>> SelectVariants(const VariantSelection& selection);

// The methods at the thresholds that the baseline gives for each rate. Methods without a threshold
// rule are left out. Appends to `notes` the thresholds that could not be chosen, and why.
std::vector<ReplayVariant> BaselineVariants(const std::vector<std::string>& methods,
                                            const BaselineNoise& noise,
                                            std::span<const double> rates,
                                            std::vector<std::string>& notes);

}  // namespace tandem::drift
