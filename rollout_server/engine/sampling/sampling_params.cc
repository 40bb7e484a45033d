#include "rollout_server/engine/sampling/sampling_params.h"

#include <algorithm>
#include <cmath>

#include "common/base/status_macros.h"
#include "common/model/token_distribution.h"

namespace tandem::rollout {
namespace {

// `Value`: the field's type, so that an integer is shown with all of its digits.
template <typename Value>
absl::Status Refuse(const char* field, Value value, const char* range) {
  return InvalidArgument("sampling.", field, " is ", value, ", want ", range);
}

}  // namespace

SamplingParams GreedyOf(const SamplingParams& sampling) {
  SamplingParams greedy = sampling;
  greedy.temperature = 0;
  greedy.top_k = 0;
  greedy.top_p = 1;
  greedy.min_p = 0;
  greedy.return_support = false;
  greedy.stop_token_ids = {};
  return greedy;
}

absl::Status ValidateSampling(const SamplingParams& s) {
  if (s.temperature != 0 && !(s.temperature >= kLeastTemperature && std::isfinite(s.temperature))) {
    return Refuse("temperature", s.temperature, "0 (greedy), or 0.001 and more and finite");
  }
  if (s.top_k < 0) return Refuse("top_k", s.top_k, ">= 0 (0 is off)");
  if (!(s.top_p > 0 && s.top_p <= 1)) return Refuse("top_p", s.top_p, "in (0, 1] (1 is off)");
  if (!(s.min_p >= 0 && s.min_p < 1)) return Refuse("min_p", s.min_p, "in [0, 1) (0 is off)");
  if (s.max_new_tokens < 1) return Refuse("max_new_tokens", s.max_new_tokens, ">= 1");
  if (s.min_new_tokens < 0 || s.min_new_tokens > s.max_new_tokens) {
    return Refuse("min_new_tokens", s.min_new_tokens, "in [0, max_new_tokens]");
  }
  if (s.top_logprobs < 0 || s.top_logprobs > kMaxTopLogprobs) {
    return Refuse("top_logprobs", s.top_logprobs, "in [0, 128] (0 is off)");
  }
  if (s.stop_strings.size() > kMaxStopStrings) {
    return Refuse("stop_strings", s.stop_strings.size(), "at most 16");
  }
  if (s.stop_token_ids.size() > kMaxStopTokenIds) {
    return Refuse("stop_token_ids", s.stop_token_ids.size(), "at most 262144");
  }
  for (size_t i = 0; i < s.stop_strings.size(); ++i) {
    const size_t size = s.stop_strings[i].size();
    if (size >= 1 && size <= kMaxStopStringBytes) continue;
    return InvalidArgument("sampling.stop_strings[", i, "] has ", size, " bytes, want 1 to ",
                           kMaxStopStringBytes);
  }
  return absl::OkStatus();
}

absl::Status CheckSomethingIsLeft(const SamplingParams& s,
                                  const std::vector<int32_t>& eos_token_ids, int64_t vocab_size) {
  if (s.min_new_tokens == 0) return absl::OkStatus();
  const size_t own = s.ignore_eos ? 0 : eos_token_ids.size();
  if (static_cast<int64_t>(s.stop_token_ids.size() + own) < vocab_size) return absl::OkStatus();
  std::vector<bool> stops(static_cast<size_t>(vocab_size));
  for (const int32_t id : s.stop_token_ids) stops[static_cast<size_t>(id)] = true;
  for (size_t i = 0; i < own; ++i) stops[static_cast<size_t>(eos_token_ids[i])] = true;
  if (std::find(stops.begin(), stops.end(), false) != stops.end()) return absl::OkStatus();
  return InvalidArgument(
      "sampling.min_new_tokens is ", s.min_new_tokens, " and the stop ids are all ", vocab_size,
      " ids of the vocabulary, so that no first token is left to draw: want fewer "
      "sampling.stop_token_ids, or min_new_tokens 0");
}

}  // namespace tandem::rollout
