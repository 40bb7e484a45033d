#include "drift_lab/hypotheses/hypothesis_families.h"

namespace tandem::drift {

std::span<const FamilySearch> AllFamilies() {
  static constexpr FamilySearch kFamilies[] = {
      SearchTemperature,         SearchTopP,           SearchTopK,     SearchMinP,
      SearchStalePrefix,         SearchFirstId,        SearchBodyBits, SearchKvBits,
      SearchRotaryBits,          SearchKvQuantisation, SearchHeadBits, SearchWeights,
      SearchTemperatureAndFilter};
  return kFamilies;
}

FamilySearch FamilyOf(Part part) {
  switch (part) {
    case Part::kTemperature:
      return SearchTemperature;
    case Part::kTopP:
      return SearchTopP;
    case Part::kTopK:
      return SearchTopK;
    case Part::kMinP:
      return SearchMinP;
    case Part::kFirstId:
      return SearchFirstId;
    case Part::kBodyBits:
      return SearchBodyBits;
    case Part::kHeadBits:
      return SearchHeadBits;
    case Part::kKvBits:
      return SearchKvBits;
    case Part::kRotaryBits:
      return SearchRotaryBits;
    case Part::kKvQuantisation:
      return SearchKvQuantisation;
    case Part::kStalePrefix:
      return SearchStalePrefix;
    default:
      return SearchWeights;
  }
}

}  // namespace tandem::drift
