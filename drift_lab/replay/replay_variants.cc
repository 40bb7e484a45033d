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
constexpr std::string_view kGeometric = "correction.geometric_min:correction.geometric_max";
constexpr std::string_view kCeiling = "correction.max_weight";

// The thresholds of a named method, and how a baseline run chooses one.
struct ThresholdList {
  std::string_view method;    // of offpolicy::NamedMethods
  std::string_view settings;  // "correction.min_weight:correction.max_weight"
  std::string_view values;    // separated by blanks
  ThresholdRule rule = ThresholdRule::kNone;
};

// One entry for every named method that has a threshold. The method's own threshold comes first;
// then half and double of it, or narrower and wider bounds, and those of other systems
// (docs/replay.md).
constexpr ThresholdList kThresholds[] = {
    {"tis", kCeiling, "2 1 1.2 4 8", ThresholdRule::kTokenCeiling},
    {"icepop", kBounds, "0.5:5 0.25:10 0.5:2 0.8:1.2", ThresholdRule::kTokenBounds},
    {"token_clip", kBounds, "0.5:5 0.25:10 0.5:2 0.8:1.2", ThresholdRule::kTokenBounds},
    {"seq_tis", kCeiling, "2 1 4 5 10", ThresholdRule::kProductCeiling},
    {"mis", kBounds, "0.5:2 0:3 0.25:4 0.8:1.25", ThresholdRule::kProductBounds},
    {"seq_clip", kBounds, "0.5:2 0.25:4 0.8:1.25", ThresholdRule::kProductBounds},
    {"geo_tis", kCeiling, "2 1.001 1.01 1.1", ThresholdRule::kGeometricCeiling},
    {"geo_mask", kBounds, "0.5:2 0.9:1.1 0.99:1.01", ThresholdRule::kGeometricBounds},
    {"geo_clip", kBounds, "0.5:2 0.9:1.1 0.99:1.01", ThresholdRule::kGeometricBounds},
    {"tis_normalised", kCeiling, "2 1 1.2 4 8", ThresholdRule::kTokenCeiling},
    {"geo_gate", kGeometric, "0.999:1.001 0.9999:1.0001 0.9995:1.0005 0.998:1.002 0.99:1.01",
     ThresholdRule::kGeometricBounds},
    {"geo_gate_tis", kGeometric, "0.999:1.002 0.9995:1.001 0.998:1.004 0.99:1.01",
     ThresholdRule::kGeometricBounds},
    {"z_gate", "correction.geometric_z:correction.geometric_noise",
     "3:0.01 2:0.01 4:0.01 3:0.005 3:0.02", ThresholdRule::kLengthAware},
    {"k3_gate", "correction.k3_mean_max", "0.01 0.001 0.005 0.02", ThresholdRule::kK3Mean},
    {"trm", "correction.k3_token_max:correction.k3_mean_max", "0.05:0.001 0.025:0.0005 0.1:0.002",
     ThresholdRule::kK3Both},
    {"veto", "correction.veto_threshold", "0.0001 0.000001 0.00001 0.001",
     ThresholdRule::kSmallest},
    {"negative_geo_gate", "correction.geometric_min", "0.6065 0.3679 0.7788",
     ThresholdRule::kGeometricFloor},
    {"negative_icepop", kBounds, "0.5:5 0.25:10 0.5:2 0.8:1.2", ThresholdRule::kTokenBounds},
    {"bypass", "loss.clip_low:loss.clip_high", "0.2:0.2 0.1:0.1 0.4:0.4 0.2:0.28",
     ThresholdRule::kClipRange},
    {"aipo", "loss.cispo_max", "2 1 4 10", ThresholdRule::kTokenCeiling},
    {"vespo", "loss.vespo_lambda_positive:loss.vespo_lambda_negative", "3:2 1.5:1 6:4",
     ThresholdRule::kNone},
    {"m2po", "loss.m2po_max", "0.04 0.01 0.02 0.08", ThresholdRule::kNone},
    {"m2po_clip", "loss.m2po_max", "0.04 0.01 0.02 0.08", ThresholdRule::kNone},
    {"dppo_tv", "loss.dppo_max_tv", "0.15 0.075 0.2 0.3", ThresholdRule::kNone},
    {"dppo_kl", "loss.dppo_max_kl", "0.05 0.025 0.1", ThresholdRule::kNone},
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
      return InvalidArgument("method ", std::string(method.name), " has no threshold, and ",
                             std::string(threshold),
                             " was given: leave the method or the threshold out");
    }
    const std::vector<std::string> names = absl::StrSplit(std::string(list->settings), ':');
    const std::vector<std::string> values = absl::StrSplit(std::string(threshold), ':');
    if (names.size() != values.size()) {
      return InvalidArgument("threshold '", std::string(threshold), "' of method ",
                             std::string(method.name), " has ", values.size(), " values; it is ",
                             std::string(list->settings));
    }
    for (size_t i = 0; i < names.size(); ++i) {
      absl::StrAppend(&settings, " ", names[i], "=", values[i]);
    }
  }
  ReplayVariant variant{std::string(method.name), std::string(threshold)};
  auto options = offpolicy::ParseMethod(settings);
  if (!options.ok()) {
    return InvalidArgument("threshold '", std::string(threshold), "' of method ",
                           std::string(method.name), ": ", std::string(options.status().message()));
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
    if (wanted && method.name != kNoCorrection) methods.push_back(method);  // it is a reference
  }
  return methods;
}

absl::StatusOr<std::vector<ReplayVariant>> References() {
  // 1e9 is above e^20, where exponents are clamped, so it is no ceiling.
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

std::vector<ReplayVariant> BaselineVariants(const std::vector<std::string>& methods,
                                            const BaselineNoise& noise,
                                            std::span<const double> rates,
                                            std::vector<std::string>& notes) {
  std::vector<ReplayVariant> variants;
  std::map<std::string, std::vector<std::string>> refused;  // methods by reason
  for (const NamedMethod& method : offpolicy::NamedMethods()) {
    const bool wanted = methods.empty() || std::ranges::find(methods, method.name) != methods.end();
    const ThresholdList* const list = FindList(method.name);
    if (!wanted || list == nullptr || list->rule == ThresholdRule::kNone) continue;
    for (const double rate : rates) {
      const absl::StatusOr<std::string> threshold = BaselineThreshold(noise, list->rule, rate);
      auto variant = threshold.ok() ? MakeVariant(method, *threshold)
                                    : absl::StatusOr<ReplayVariant>(threshold.status());
      if (variant.ok()) {
        variant->baseline_rate = rate;
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
