#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "common/base/status_macros.h"
#include "drift_lab/hypotheses/hypothesis_families.h"

namespace tandem::drift {
namespace {

using rollout::SitePrecision;

constexpr int kMostBits = 23;

// The root mean square difference of two predictions, over tokens where both are finite.
double Distance(const std::vector<float>& a, const std::vector<float>& b) {
  double squares = 0, count = 0;
  for (size_t t = 0; t < a.size(); ++t) {
    const double difference = static_cast<double>(a[t]) - b[t];
    if (!std::isfinite(difference)) continue;
    squares += difference * difference;
    count += 1;
  }
  return count > 0 ? std::sqrt(squares / count) : 0;
}

// Searches a number of bits: tries `first`, then the number at which the effect would have the size
// of the residual, and its two neighbours. A rounding error halves with every bit, so the log2 of
// the ratio of the two sizes is the distance in bits. The effect is measured against `base` without
// the parameter.
template <typename Set>
absl::StatusOr<Attempt> SearchBits(HypothesisSearch& search, const Attempt& base, Part part,
                                   int first, int fewest, int most, const Set& set) {
  TANDEM_ASSIGN_OR_RETURN(const Attempt without, search.Without(base, part));
  Attempt best = base;
  const double wanted = Distance(search.capture().behaviour_logprobs, without.predicted);
  std::vector<int> tried;
  const auto attempt = [&](int bits) -> absl::StatusOr<double> {
    bits = std::clamp(bits, fewest, most);
    if (std::ranges::find(tried, bits) != tried.end()) return 0.0;
    tried.push_back(bits);
    RecordHypothesis hypothesis = without.hypothesis;
    set(bits, hypothesis);
    TANDEM_ASSIGN_OR_RETURN(Attempt made, search.Try(hypothesis, part));
    const double effect = Distance(made.predicted, without.predicted);
    KeepBetter(std::move(made), best);
    return effect;
  };
  TANDEM_ASSIGN_OR_RETURN(const double effect, attempt(first));
  if (!(effect > 0) || !(wanted > 0)) return best;  // the dtype already rounds as much
  const int guess =
      std::clamp(first - static_cast<int>(std::lround(std::log2(wanted / effect))), fewest, most);
  for (const int bits : {guess, guess + 1, guess - 1}) {
    if (best.fit.exact()) break;
    TANDEM_RETURN_IF_ERROR(attempt(bits).status());
  }
  return best;
}

absl::StatusOr<Attempt> SearchSite(HypothesisSearch& search, const Attempt& base, Part part,
                                   int SitePrecision::*site) {
  // A bf16 engine already rounds some sites to 8 bits.
  constexpr int kFirst = 7;
  return SearchBits(search, base, part, kFirst, 2, kMostBits,
                    [site](int bits, RecordHypothesis& h) { h.precision.*site = bits; });
}

// The first position, over all completions, at which the record differs from the replay; -1: none.
int64_t FirstPositionThatDiffers(const HypothesisSearch& search, const Attempt& base) {
  const offpolicy::Capture& capture = search.capture();
  int64_t first = -1;
  for (int64_t s = 0; s < capture.num_completions(); ++s) {
    for (int64_t t = capture.begin_of(s); t < capture.begin_of(s + 1); ++t) {
      const auto place = static_cast<size_t>(t);
      const double residual = Residual(capture.behaviour_logprobs[place], base.predicted[place]);
      if (!(std::abs(residual) > kSameLogprob)) continue;
      const int64_t position = std::ssize(capture.prompt_of(s)) - 1 + t - capture.begin_of(s);
      if (first < 0 || position < first) first = position;
      break;
    }
  }
  return first;
}

}  // namespace

absl::StatusOr<Attempt> SearchBodyBits(HypothesisSearch& search, const Attempt& base) {
  return SearchSite(search, base, Part::kBodyBits, &SitePrecision::body_bits);
}

absl::StatusOr<Attempt> SearchHeadBits(HypothesisSearch& search, const Attempt& base) {
  return SearchSite(search, base, Part::kHeadBits, &SitePrecision::head_bits);
}

absl::StatusOr<Attempt> SearchKvBits(HypothesisSearch& search, const Attempt& base) {
  return SearchSite(search, base, Part::kKvBits, &SitePrecision::kv_bits);
}

absl::StatusOr<Attempt> SearchRotaryBits(HypothesisSearch& search, const Attempt& base) {
  return SearchSite(search, base, Part::kRotaryBits, &SitePrecision::rotary_bits);
}

absl::StatusOr<Attempt> SearchKvQuantisation(HypothesisSearch& search, const Attempt& base) {
  constexpr int kFirst = 8, kFewest = 2, kMost = 16;
  const int64_t from = FirstPositionThatDiffers(search, base);
  Attempt best = base;
  // The cache is quantised from its start, or from where the record begins to differ.
  for (const int64_t position : {int64_t{0}, from}) {
    if (best.fit.exact() || position < 0) break;
    TANDEM_RETURN_IF_ERROR(
        KeepBetter(SearchBits(search, base, Part::kKvQuantisation, kFirst, kFewest, kMost,
                              [position](int bits, RecordHypothesis& h) {
                                h.kv_quantisation = {bits, position};
                              }),
                   best));
  }
  return best;
}

}  // namespace tandem::drift
