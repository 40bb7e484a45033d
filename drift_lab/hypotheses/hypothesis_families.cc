#include "drift_lab/hypotheses/hypothesis_families.h"

#include <map>

namespace tandem::drift {

std::span<const FamilySearch> AllFamilies() {
  static constexpr FamilySearch kFamilies[] = {SearchTemperature,    SearchTopP,
                                               SearchTopK,           SearchMinP,
                                               SearchStalePrefix,    SearchFirstId,
                                               SearchBodyBits,       SearchKvBits,
                                               SearchRotaryBits,     SearchHeadBits,
                                               SearchKvQuantisation, SearchWeights,
                                               SearchWeightFormat,   SearchTemperatureAndFilter};
  return kFamilies;
}

FamilySearch FamilyOf(Part part) {
  static const std::map<Part, FamilySearch> families = {
      {Part::kTemperature, SearchTemperature},
      {Part::kTopP, SearchTopP},
      {Part::kTopK, SearchTopK},
      {Part::kMinP, SearchMinP},
      {Part::kFirstId, SearchFirstId},
      {Part::kBodyBits, SearchBodyBits},
      {Part::kHeadBits, SearchHeadBits},
      {Part::kKvBits, SearchKvBits},
      {Part::kRotaryBits, SearchRotaryBits},
      {Part::kKvQuantisation, SearchKvQuantisation},
      {Part::kWeightFormat, SearchWeightFormat},
      {Part::kStalePrefix, SearchStalePrefix}};
  const auto found = families.find(part);
  return found == families.end() ? SearchWeights : found->second;
}

}  // namespace tandem::drift
