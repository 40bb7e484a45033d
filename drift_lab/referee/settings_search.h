// What a sampler did, found in log-probs and in draws: temperature, filters, penalties, bans and soft
// caps, all at the logits of one forward pass. Used by judge.cc. Pure.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "drift_lab/records/records.h"
#include "drift_lab/referee/forward/token_logits.h"
#include "drift_lab/referee/forward/variant.h"
#include "drift_lab/referee/residuals.h"

namespace tandem::drift {

SamplerSettings ClaimedSettings(const SideClaims& claims);

// The log-prob of every token under `settings`.
std::vector<double> PredictLogprobs(std::span<const TokenLogits> logits,
                                    const SamplerSettings& settings);

struct SettingsFit {
  SamplerSettings settings;
  std::vector<std::string> causes;  // what differs from `from`; empty: nothing helps
  int64_t num_tried = 0;            // settings that were looked at
};

// Settings that bring the predictions near `values` [M], found on the tokens of `search` alone.
// Beginning at `from`, a setting is added as long as it takes away a tenth of what is left, and more
// than a hundredth of a scale at every token. The cause `but` is left out: what is found without the
// cause of another fit competes with it.
SettingsFit FitSettings(std::span<const TokenLogits> logits, std::span<const double> values,
                        const TokenSet& tokens, const std::vector<bool>& search,
                        const SamplerSettings& from, const std::string& but = "");

// Were the tokens drawn from the distribution that `claimed` makes?
struct DrawCheck {
  int64_t num_tokens = 0;
  bool follows = true;
  SettingsFit best;       // settings under which the draws are likeliest
  double gain = 0;        // log-likelihood against `claimed`, nats
  double over_rival = 0;  // against the likeliest settings with another cause
  std::string rival;
};
DrawCheck CheckDraws(std::span<const TokenLogits> logits, const SamplerSettings& claimed);

}  // namespace tandem::drift
