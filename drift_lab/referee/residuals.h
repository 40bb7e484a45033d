// Residuals: how far a side's log-probs are from what a suspect predicts, against the noise that
// rounding to bfloat16 in another engine's kernels makes. Used by settings_search.cc and judge.cc.
// Pure.
//
// The noise of a token depends on its log-prob: certain tokens have little. The scale is measured:
// the referee's own pass in bf16, whose roundings are those of `transformers`, against its pass in
// fp32.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "common/statistics/cluster_bootstrap.h"

namespace tandem::drift {

// Below this mean of |difference| in nats, two engines say the same numbers.
inline constexpr double kSameMeanAbs = 1e-4;
// What rounding gives at most (docs/foreign_engines.md has the measurements): the root mean square in
// units of the scale, where no token counts as more than kExtreme of them; the share of tokens beyond
// five; and tokens beyond kExtreme, one and this share. Sums in bf16 now and then fall to the other
// side, and one such token of 700 would decide a root mean square alone.
inline constexpr double kMostRounding = 1.3;
inline constexpr double kMostTail = 0.006;
inline constexpr double kExtreme = 10;
inline constexpr double kMostExtreme = 0.0005;

// M tokens. Values that are not finite are left out everywhere.
struct TokenSet {
  std::vector<int64_t> row;   // [M]
  std::vector<double> scale;  // [M] of rounding to bf16, in nats
  std::vector<double>
      rounding;  // [M] the referee's pass in bf16 less that in fp32; NaN: not played
  size_t size() const { return row.size(); }
};

// The scale of a token by its log-prob: root mean square of `rounding` over tokens with log-probs
// like its own.
class NoiseCurve {
 public:
  NoiseCurve() = default;
  // [M] each; NaN in `rounding`: not played
  NoiseCurve(std::span<const double> logprobs, std::span<const double> rounding);
  double At(double logprob) const;  // nats
  std::vector<double> At(std::span<const double> logprobs) const;

 private:
  std::vector<double> logprobs_, scales_;  // increasing log-probs
};

struct ResidualSize {
  int64_t num_tokens = 0;
  double mean_abs = 0, mean = 0, rms = 0, largest = 0;  // nats
  double in_scale = 0;                                  // root mean square of residual / scale
  double bounded = 0;                                   // the same, of at most kExtreme a token
  double tail = 0;                                      // share beyond five scales
  int64_t num_extreme = 0;                              // tokens beyond kExtreme
  // Correlation with the referee's own rounding, and with its standard error.
  double like_bf16 = 0, like_bf16_error = 1;
  bool same() const { return num_tokens > 0 && mean_abs < kSameMeanAbs && largest < 0.05; }
  bool as_rounding() const {
    return num_tokens > 0 && bounded <= kMostRounding && tail <= kMostTail &&
           static_cast<double>(num_extreme) <= 1 + kMostExtreme * static_cast<double>(num_tokens);
  }
  // The differences go with the referee's own roundings, which no other cause does.
  bool goes_with_bf16() const { return like_bf16 > 0.08 && like_bf16 > 4 * like_bf16_error; }
};
ResidualSize SizeOf(std::span<const double> residual, const TokenSet& tokens);

// How much of a gap a prediction explains. Both are differences from the referee's own numbers, [M].
struct Explained {
  offpolicy::Interval share;        // 1 - sum w (d - h)^2 / sum w d^2, w = 1 / scale^2, over rows
  offpolicy::Interval coefficient;  // sum w d h / sum w h^2: 1 where the strength is right
  double correlation = 0;           // of what is left of both without what a temperature would do
};
Explained Explain(std::span<const double> gap, std::span<const double> predicted,
                  const TokenSet& tokens, bool with_intervals);

// The difference of the shares that two predictions explain, first less second, over rows.
offpolicy::Interval ShareAdvantage(std::span<const double> gap, std::span<const double> first,
                                   std::span<const double> second, const TokenSet& tokens);

}  // namespace tandem::drift
