#include "common/offpolicy/loss_scales.h"

#include <map>

namespace tandem::offpolicy {

LossScales ComputeLossScales(std::span<const uint8_t> counted, std::span<const int64_t> completion,
                             int64_t num_completions, const ObjectiveOptions& options) {
  LossScales result;
  result.scale.assign(counted.begin(), counted.end());
  std::map<int64_t, int64_t> tokens;  // tokens of each completion
  int64_t num_tokens = 0;
  for (size_t t = 0; t < counted.size(); ++t) {
    if (!counted[t]) continue;
    ++tokens[completion[t]];
    ++num_tokens;
  }
  switch (options.normalisation) {
    case Normalisation::kToken:
      result.denominator = static_cast<double>(num_tokens);
      break;
    case Normalisation::kConstant:
      result.denominator = static_cast<double>(num_completions * options.constant_length);
      break;
    case Normalisation::kSequence:
      for (size_t t = 0; t < counted.size(); ++t) {
        if (counted[t]) result.scale[t] = 1.0 / static_cast<double>(tokens[completion[t]]);
      }
      result.denominator = static_cast<double>(tokens.size());
  }
  return result;
}

}  // namespace tandem::offpolicy
