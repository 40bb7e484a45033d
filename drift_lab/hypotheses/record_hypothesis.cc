#include "drift_lab/hypotheses/record_hypothesis.h"

#include <algorithm>
#include <limits>

namespace tandem::drift {

bool RecordHypothesis::Has(Part part) const {
  RecordHypothesis cleared = *this;
  cleared.Clear(part);
  return !(cleared == *this);
}

void RecordHypothesis::Clear(Part part) { Adopt(part, RecordHypothesis()); }

void RecordHypothesis::Adopt(Part part, const RecordHypothesis& other) {
  if (part == Part::kTemperature) temperature = other.temperature;
  if (part == Part::kTopP) top_p = other.top_p;
  if (part == Part::kTopK) top_k = other.top_k;
  if (part == Part::kMinP) min_p = other.min_p;
  if (part == Part::kFirstId) first_id = other.first_id;
  if (part == Part::kBodyBits) precision.body_bits = other.precision.body_bits;
  if (part == Part::kHeadBits) precision.head_bits = other.precision.head_bits;
  if (part == Part::kKvBits) precision.kv_bits = other.precision.kv_bits;
  if (part == Part::kRotaryBits) precision.rotary_bits = other.precision.rotary_bits;
  if (part == Part::kKvQuantisation) kv_quantisation = other.kv_quantisation;
  if (part == Part::kWeightFormat) weight_formats = other.weight_formats;
  if (part == Part::kOtherVersion || part == Part::kInterpolation || part == Part::kTensor) {
    weights = other.weights;
  }
  if (part == Part::kStalePrefix) {
    stale_prefix = other.stale_prefix;
    stale_rows = other.stale_rows;
  }
}

rollout::ScoreOptions RecordHypothesis::Transforms(const rollout::ScoreOptions& claims) const {
  rollout::ScoreOptions options = claims;
  options.temperature = static_cast<float>(claims.temperature * temperature);
  if (top_k > 0 && (claims.top_k == 0 || top_k < claims.top_k))
    options.top_k = static_cast<int32_t>(top_k);
  options.top_p = std::min(claims.top_p, static_cast<float>(top_p));
  options.min_p = std::max(claims.min_p, static_cast<float>(min_p));
  options.arithmetic = {precision, kv_quantisation};
  return options;
}

std::vector<float> ShiftRows(const std::vector<float>& replay, const std::vector<int>& shifts,
                             const std::vector<int64_t>& offsets) {
  std::vector<float> shifted = replay;
  for (size_t s = 0; s < shifts.size(); ++s) {
    if (shifts[s] == 0) continue;
    for (int64_t t = offsets[s]; t < offsets[s + 1]; ++t) {
      const int64_t from = t - shifts[s];
      shifted[static_cast<size_t>(t)] = from >= offsets[s] && from < offsets[s + 1]
                                            ? replay[static_cast<size_t>(from)]
                                            : std::numeric_limits<float>::quiet_NaN();
    }
  }
  return shifted;
}

}  // namespace tandem::drift
