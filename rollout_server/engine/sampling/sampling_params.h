// SamplingParams: how a completion is drawn, as plain structs. TopLogprob: an entry of what is
// recorded beside a token.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"

namespace tandem::rollout {

inline constexpr int32_t kMaxTopLogprobs = 128;
inline constexpr size_t kMaxStopStrings = 16;
inline constexpr size_t kMaxStopStringBytes = 1024;
inline constexpr size_t kMaxStopTokenIds = 1 << 18;  // a large vocabulary

struct SamplingParams {
  float temperature = 1.0f;  // >= 0; 0 is greedy
  int32_t top_k = 0;         // 0: off
  float top_p = 1.0f;        // 1: off
  float min_p = 0.0f;        // 0: off
  int32_t max_new_tokens = 0;
  int32_t min_new_tokens = 0;
  std::vector<int32_t> stop_token_ids;  // with the model's end tokens unless ignore_eos
  std::vector<std::string> stop_strings;
  uint64_t seed = 0;
  bool ignore_eos = false;
  bool return_support = false;  // record the ids that top-k, top-p and min-p leave, for each token
  bool packed_support = false;  // compressed on the wire
  int32_t top_logprobs = 0;     // how many of the most likely ids to record for each token
};

// An id and its behaviour log-prob.
struct TopLogprob {
  int32_t id = 0;
  float logprob = 0;
  friend bool operator==(const TopLogprob&, const TopLogprob&) = default;
};

// Greedy and without filters, with the lengths and stops of `sampling`. The ids of its stop tokens
// are left out: the group has them.
SamplingParams GreedyOf(const SamplingParams& sampling);

// Checks ranges that need no model.
//   INVALID_ARGUMENT  names the field, the value and the range
absl::Status ValidateSampling(const SamplingParams& sampling);

// Is there an id that a completion may begin with? min_new_tokens forbids the stop ids, which are
// `stop_token_ids` and, unless ignore_eos, the model's end tokens. All ids lie in [0, vocab_size).
//   INVALID_ARGUMENT  the stop ids are the whole vocabulary
absl::Status CheckSomethingIsLeft(const SamplingParams& sampling,
                                  const std::vector<int32_t>& eos_token_ids, int64_t vocab_size);

}  // namespace tandem::rollout
