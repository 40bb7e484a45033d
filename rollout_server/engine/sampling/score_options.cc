#include "rollout_server/engine/sampling/score_options.h"

#include <cmath>
#include <utility>

#include "common/base/status_macros.h"
#include "common/model/token_distribution.h"

namespace tandem::rollout {
namespace {

absl::Status Refuse(const char* field, double value, const char* range) {
  return InvalidArgument(field, " is ", value, ", want ", range);
}

}  // namespace

absl::Status ValidateScoreOptions(const ScoreOptions& o) {
  if (!(o.temperature >= kLeastTemperature && std::isfinite(o.temperature))) {
    return Refuse("temperature", o.temperature, "0.001 or more and finite");
  }
  if (o.top_k < 0) return Refuse("top_k", o.top_k, ">= 0 (0 is off)");
  if (!(o.top_p > 0 && o.top_p <= 1)) return Refuse("top_p", o.top_p, "in (0, 1] (1 is off)");
  if (!(o.min_p >= 0 && o.min_p < 1)) return Refuse("min_p", o.min_p, "in [0, 1) (0 is off)");
  if (o.top_logprobs < 0 || o.top_logprobs > kMaxTopLogprobs) {
    return Refuse("top_logprobs", o.top_logprobs, "in [0, 128] (0 is off)");
  }
  for (const auto& [name, bits] :
       {std::pair("precision.body_bits", o.arithmetic.precision.body_bits),
        {"precision.head_bits", o.arithmetic.precision.head_bits},
        {"precision.kv_bits", o.arithmetic.precision.kv_bits},
        {"precision.rotary_bits", o.arithmetic.precision.rotary_bits}}) {
    if (bits < kLeastSignificandBits || bits > kFp32SignificandBits) {
      return Refuse(name, bits, "2 to 24 (24 is untouched)");
    }
  }
  const int kv = o.arithmetic.kv_quantisation.bits;
  if (kv != 0 && (kv < 2 || kv > 16))
    return Refuse("kv_quantisation.bits", kv, "2 to 16 (0 is off)");
  return absl::OkStatus();
}

}  // namespace tandem::rollout
