#include "drift_lab/replay/replay_variants.h"

#include <algorithm>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "common/base/status_macros.h"

namespace tandem::drift {
namespace {

using offpolicy::NamedMethod;

constexpr std::string_view kBounds = "correction.min_weight:correction.max_weight";
constexpr std::string_view kGate = "correction.geometric_min:correction.geometric_max";
constexpr std::string_view kCeiling = "correction.max_weight";

// The method's own threshold first; then half and double of it or narrower and wider bounds, and
// what others ship (docs/replay.md names them).
constexpr ThresholdList kThresholds[] = {
    {"tis", kCeiling, "2 1 1.2 4 8", NullRule::kTokenCeiling},
    {"icepop", kBounds, "0.5:5 0.25:10 0.5:2 0.8:1.2", NullRule::kTokenBounds},
    {"token_clip", kBounds, "0.5:5 0.25:10 0.5:2 0.8:1.2", NullRule::kTokenBounds},
    {"seq_tis", kCeiling, "2 1 4 5 10", NullRule::kProductCeiling},
    {"mis", kBounds, "0.5:2 0:3 0.25:4 0.8:1.25", NullRule::kProductBounds},
    {"seq_clip", kBounds, "0.5:2 0.25:4 0.8:1.25", NullRule::kProductBounds},
    {"geo_tis", kCeiling, "2 1.001 1.01 1.1", NullRule::kGeometricCeiling},
    {"geo_mask", kBounds, "0.5:2 0.9:1.1 0.99:1.01", NullRule::kGeometricBounds},
    {"geo_clip", kBounds, "0.5:2 0.9:1.1 0.99:1.01", NullRule::kGeometricBounds},
    {"tis_normalised", kCeiling, "2 1 1.2 4 8", NullRule::kTokenCeiling},
    {"geo_gate", kGate, "0.999:1.001 0.9999:1.0001 0.9995:1.0005 0.998:1.002 0.99:1.01",
     NullRule::kGeometricBounds},
    {"geo_gate_tis", kGate, "0.999:1.002 0.9995:1.001 0.998:1.004 0.99:1.01",
     NullRule::kGeometricBounds},
    {"z_gate", "correction.geometric_z:correction.geometric_noise",
     "3:0.01 2:0.01 4:0.01 3:0.005 3:0.02", NullRule::kLengthAware},
    {"k3_gate", "correction.k3_mean_max", "0.01 0.001 0.005 0.02", NullRule::kK3Mean},
    {"trm", "correction.k3_token_max:correction.k3_mean_max", "0.05:0.001 0.025:0.0005 0.1:0.002",
     NullRule::kK3Both},
    {"veto", "correction.veto_threshold", "0.0001 0.000001 0.00001 0.001", NullRule::kSmallest},
    {"negative_geo_gate", "correction.geometric_min", "0.6065 0.3679 0.7788",
     NullRule::kGeometricFloor},
    {"negative_icepop", kBounds, "0.5:5 0.25:10 0.5:2 0.8:1.2", NullRule::kTokenBounds},
    {"bypass", "loss.clip_low:loss.clip_high", "0.2:0.2 0.1:0.1 0.4:0.4 0.2:0.28",
     NullRule::kClipRange},
    {"aipo", "loss.cispo_max", "2 1 4 10", NullRule::kTokenCeiling},
    {"vespo", "loss.vespo_lambda_positive:loss.vespo_lambda_negative", "3:2 1.5:1 6:4",
     NullRule::kNone},
    {"m2po", "loss.m2po_max", "0.04 0.01 0.02 0.08", NullRule::kNone},
    {"m2po_clip", "loss.m2po_max", "0.04 0.01 0.02 0.08", NullRule::kNone},
    {"dppo_tv", "loss.dppo_max_tv", "0.15 0.075 0.2 0.3", NullRule::kNone},
    {"dppo_kl", "loss.dppo_max_kl", "0.05 0.025 0.1", NullRule::kNone},
};

const ThresholdList* FindList(std::string_view method) {
  const auto found = std::ranges::find(kThresholds, method, &ThresholdList::method);
  return found == std::end(kThresholds) ? nullptr : &*found;
}

absl::StatusOr<ReplayVariant> MakeVariant(const NamedMethod& method, std::string_view threshold) {
  std::string settings(method.settings);
  if (!threshold.empty()) {
    const ThresholdList* const list = FindList(method.name);
    if (list == nullptr) {
      return absl::InvalidArgumentError(absl::StrCat(
          "method ", std::string(method.name), " has no threshold, and ", std::string(threshold),
          " was given: leave the method or the threshold out"));
    }
    const std::vector<std::string> names = absl::StrSplit(std::string(list->settings), ':');
    const std::vector<std::string> values = absl::StrSplit(std::string(threshold), ':');
    if (names.size() != values.size()) {
      return absl::InvalidArgumentError(absl::StrCat(
          "threshold '", std::string(threshold), "' of method ", std::string(method.name), " has ",
          values.size(), " values; it is ", std::string(list->settings)));
    }
    for (size_t i = 0; i < names.size(); ++i) {
      absl::StrAppend(&settings, " ", names[i], "=", values[i]);
    }
  }
  ReplayVariant variant{std::string(method.name), std::string(threshold)};
  auto options = offpolicy::ParseMethod(settings);
  if (!options.ok()) {
    return absl::InvalidArgumentError(absl::StrCat("threshold '", std::string(threshold),
                                                   "' of method ", std::string(method.name), ": ",
                                                   std::string(options.status().message())));
  }
  variant.options = *options;
  return variant;
}

absl::StatusOr<std::vector<NamedMethod>> MethodsNamed(const std::vector<std::string>& names) {
  for (const std::string& name : names) {
    TANDEM_RETURN_IF_ERROR(offpolicy::FindMethod(name).status());
  }
  std::vector<NamedMethod> methods;
  for (const NamedMethod& method : offpolicy::NamedMethods()) {
    const bool wanted = names.empty() || std::ranges::find(names, method.name) != names.end();
    if (wanted && method.name != kNoCorrection) methods.push_back(method);  // a reference already
  }
  return methods;
}

absl::StatusOr<std::vector<ReplayVariant>> References() {
  // Above e^20, where exponents are clamped: no ceiling.
  constexpr NamedMethod kReferences[kNumReferences] = {
      {kNoCorrection, "correction.kind=off"},
      {kExactToken, "correction.kind=token_tis correction.max_weight=1e9"},
      {kExact, "correction.kind=sequence_tis correction.max_weight=1e9"},
  };
  std::vector<ReplayVariant> references;
  for (const NamedMethod& method : kReferences) {
    TANDEM_ASSIGN_OR_RETURN(references.emplace_back(), MakeVariant(method, ""));
  }
  return references;
}

std::vector<std::string> ThresholdsOf(const NamedMethod& method,
                                      const VariantSelection& selection) {
  if (!selection.thresholds.empty()) return selection.thresholds;
  const ThresholdList* const list = FindList(method.name);
  if (list == nullptr) return {""};
  std::vector<std::string> values = absl::StrSplit(std::string(list->values), ' ');
  if (!selection.all) values.resize(1);
  return values;
}

}  // namespace

std::span<const ThresholdList> ThresholdLists() { return kThresholds; }

absl::StatusOr<std::vector<ReplayVariant>> SelectVariants(const VariantSelection& selection) {
  if (!selection.thresholds.empty() && selection.methods.empty()) {
    return absl::InvalidArgumentError(
        "thresholds mean another thing for every method: name the methods they are for");
  }
  TANDEM_ASSIGN_OR_RETURN(std::vector<ReplayVariant> variants, References());
  TANDEM_ASSIGN_OR_RETURN(const auto methods, MethodsNamed(selection.methods));
  for (const NamedMethod& method : methods) {
    for (const std::string& threshold : ThresholdsOf(method, selection)) {
      TANDEM_ASSIGN_OR_RETURN(variants.emplace_back(), MakeVariant(method, threshold));
    }
  }
  return variants;
}

std::vector<ReplayVariant> NullVariants(const std::vector<std::string>& methods,
                                        const NullFloor& floor, std::span<const double> rates,
                                        std::vector<std::string>& notes) {
  std::vector<ReplayVariant> variants;
  std::map<std::string, std::vector<std::string>> refused;  // by reason: it holds for many methods
  for (const NamedMethod& method : offpolicy::NamedMethods()) {
    const bool wanted = methods.empty() || std::ranges::find(methods, method.name) != methods.end();
    const ThresholdList* const list = FindList(method.name);
    if (!wanted || list == nullptr || list->rule == NullRule::kNone) continue;
    for (const double rate : rates) {
      const absl::StatusOr<std::string> threshold = NullThreshold(floor, list->rule, rate);
      auto variant = threshold.ok() ? MakeVariant(method, *threshold)
                                    : absl::StatusOr<ReplayVariant>(threshold.status());
      if (variant.ok()) {
        variant->null_rate = rate;
        variants.push_back(*std::move(variant));
      } else {
        refused[absl::StrCat("rate ", rate, ", ", std::string(variant.status().message()))]
            .push_back(std::string(method.name));
      }
    }
  }
  for (const auto& [reason, names] : refused) {
    notes.push_back(absl::StrCat(reason, ": ", absl::StrJoin(names, ", ")));
  }
  return variants;
}

}  // namespace tandem::drift
