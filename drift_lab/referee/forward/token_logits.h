// TokenLogits: the logits behind one drawn token, reduced to what every suspect at the level of
// logits (temperature, filters, penalties, bans, soft caps) needs, so that hundreds of them are
// tried without another forward pass. The largest logits are kept as they are, the others as a
// histogram. Used by referee_forward.cc, which makes them, and by the judge. Pure.
//
// Accuracy: log-probs of a renormalised distribution are within 1e-4 of those of all logits. A
// top-k beyond kKeptLogits is interpolated. Memory: about 5 KB a token.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "drift_lab/referee/forward/variant.h"

namespace tandem::drift {

inline constexpr int64_t kKeptLogits = 192;

struct LogitBin {
  float logit = 0;  // mean of the bin's logits
  float count = 0;
};
struct KeptLogit {
  int32_t id = 0;
  float logit = 0;
};
// A token of the context.
struct SeenLogit {
  int32_t id = 0;
  float logit = 0;
  int32_t in_prompt = 0, in_completion = 0;  // how often
};

struct TokenLogits {
  int64_t row = 0, place = 0;  // place: number of drawn tokens of the row before this one
  int32_t token = 0;
  float token_logit = 0;
  std::vector<KeptLogit> kept;  // largest first
  std::vector<LogitBin> bins;   // of the others, largest first
  std::vector<SeenLogit> seen;  // distinct tokens of the context
  std::vector<KeptLogit> ends;  // the end tokens
};

// What the referee says of a token under some settings. The log-prob of a token that filters leave
// out, or that is banned, is -infinity.
struct TokenScore {
  double logprob = 0;
};

// `logits` [V] of one context.
TokenLogits ReduceLogits(std::span<const float> logits, int32_t token,
                         std::span<const int32_t> end_tokens);

TokenScore ScoreToken(const TokenLogits& logits, const SamplerSettings& settings);

}  // namespace tandem::drift
