#include "drift_lab/screening/lattice_signs.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <numbers>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/printable.h"

namespace tandem::drift {
namespace {

constexpr int64_t kLeastLatticeValues = 8;
constexpr size_t kMostLatticeValues = 200'000;
constexpr int kMostDecimals = 5;  // of 6 decimals and more, float32 has too few digits to tell

bool IsBfloat16(float x) { return (std::bit_cast<uint32_t>(x) & 0xffffU) == 0; }

bool IsFloat16(float x) {
  const float size = std::abs(x);
  if (size > 65504.0F) return false;
  if (size >= 0x1p-14F) return (std::bit_cast<uint32_t>(x) & 0x1fffU) == 0;
  const float steps = size * 0x1p24F;
  return steps == std::floor(steps);
}

bool IsDecimal(float x, int digits) {
  const double scale = std::pow(10.0, digits);
  return static_cast<float>(std::round(static_cast<double>(x) * scale) / scale) == x;
}

// Numbers of which the lattices say something: not 0, and for decimals not so large that float32 has
// no more digits.
bool Tells(float x, bool decimal) {
  const float size = std::abs(x);
  return size > (decimal ? 1e-2F : 1e-6F) && size < (decimal ? 4.0F : 1e4F);
}

template <typename Holds>
int64_t CountOn(std::span<const float> values, bool decimal, const Holds& holds) {
  const size_t stride = std::max<size_t>(1, values.size() / kMostLatticeValues);
  int64_t count = 0;
  for (size_t m = 0; m < values.size(); m += stride) {
    if (!std::isfinite(values[m]) || !Tells(values[m], decimal)) continue;
    if (!holds(values[m])) return 0;
    ++count;
  }
  return count;
}

// The mean over the values of a quarter of the step, which is the mean error of rounding.
double MeanError(std::span<const float> values, int mantissa_bits) {
  double sum = 0, count = 0;
  for (const float x : values) {
    if (!std::isfinite(x)) continue;
    count += 1;
    if (x != 0) sum += std::ldexp(1.0, std::ilogb(x) - mantissa_bits) / 4;
  }
  return count > 0 ? sum / count : 0;
}

// Rounding to a lattice is a fault unless the header declares it.
Sign RoundingSign(const Records& records, Column column, SignSide side,
                  std::span<const float> values, double mean_abs_delta) {
  Sign sign{.id = "rounding", .side = side};
  const Lattice lattice = LatticeOf(values);
  const auto origin = records.header.columns.find(ColumnName(column));
  const std::string declared = origin == records.header.columns.end() ? "" : origin->second.digits;
  if (lattice.name.empty()) {
    const auto given =
        std::ranges::count_if(values, [](float x) { return std::isfinite(x) && x != 0; });
    const bool enough = given >= 4 * kLeastLatticeValues;
    sign.verdict = enough ? SignVerdict::kRuledOut : SignVerdict::kCannotTell;
    sign.statement =
        enough ? absl::StrCat(ColumnName(column),
                              " is not rounded to float16, bfloat16 or five decimals or fewer.")
               : absl::StrCat(ColumnName(column),
                              " has too few values to tell what they are rounded to.");
    return sign;
  }
  sign.verdict = SignVerdict::kShown;
  sign.accuses = declared != lattice.name;
  sign.statistic = "mean error of the rounding, nats";
  sign.value.value = lattice.mean_error;
  sign.false_alarm_rate =
      std::pow(0.05, static_cast<double>(std::min<int64_t>(lattice.num_values, 8)));
  sign.statement = absl::StrFormat(
      "All %d values of %s are %s numbers%s. Rounding to them leaves %.2g nats a token%s.",
      lattice.num_values, ColumnName(column), lattice.name,
      sign.accuses
          ? (declared.empty() ? ", which the file does not say"
                              : absl::StrCat(", though the file says ", Printable(declared)))
          : ", as the file says",
      lattice.mean_error,
      mean_abs_delta > 0 ? absl::StrFormat(" of the %.2g between the sides", mean_abs_delta) : "");
  if (lattice.mean_error > 1e-4) {
    sign.command = absl::StrCat("Write ", ColumnName(column), " in float32, before any cast.");
  }
  return sign;
}

double MeanAbsDelta(const TokenPairs& pairs) {
  double sum = 0, count = 0;
  for (size_t m = 0; m < pairs.place.size(); ++m) {
    const double delta = pairs.delta(m);
    if (!std::isfinite(delta)) continue;
    sum += std::abs(delta);
    count += 1;
  }
  return count > 0 ? sum / count : 0;
}

// How far one side is from `factor` times the other, as a share of how far it is from the other.
double LeftAt(const TokenPairs& pairs, double factor) {
  double left = 0, all = 0;
  for (size_t m = 0; m < pairs.place.size(); ++m) {
    const double a = pairs.behaviour[m], b = pairs.proximal[m];
    if (!std::isfinite(a - b)) continue;
    left += std::abs(a - factor * b);
    all += std::abs(a - b);
  }
  return all > 0 ? left / all : 1;
}

// The median of behaviour / proximal over tokens that were not certain, and the spread of the
// middle half around it.
struct RatioMedian {
  double median = 0, spread = 0;
  size_t count = 0;
};
RatioMedian MedianRatio(const TokenPairs& pairs) {
  std::vector<double> ratios;
  for (size_t m = 0; m < pairs.place.size(); ++m) {
    const double a = pairs.behaviour[m], b = pairs.proximal[m];
    if (std::min(a, b) < -1 && std::max(a, b) < -0.2) ratios.push_back(a / b);
  }
  RatioMedian found{.count = ratios.size()};
  if (ratios.size() < 20) return found;
  const auto quantile = [&](double q) {
    const auto at =
        ratios.begin() + static_cast<int64_t>(q * static_cast<double>(ratios.size() - 1));
    std::ranges::nth_element(ratios, at);
    return *at;
  };
  found.median = quantile(0.5);
  found.spread = (quantile(0.75) - quantile(0.25)) / found.median;
  return found;
}

}  // namespace

Lattice LatticeOf(std::span<const float> values) {
  const auto enough = [](int64_t count) { return count >= kLeastLatticeValues; };
  int64_t count = CountOn(values, false, IsBfloat16);
  if (enough(count)) return {"bfloat16", MeanError(values, 7), count};
  for (int digits = 1; digits <= kMostDecimals; ++digits) {
    count = CountOn(values, true, [=](float x) { return IsDecimal(x, digits); });
    if (enough(count))
      return {absl::StrCat("decimal:", digits), std::pow(10.0, -digits) / 4, count};
  }
  count = CountOn(values, false, IsFloat16);
  if (enough(count)) return {"float16", MeanError(values, 10), count};
  return {};
}

std::vector<Sign> RoundingSigns(const Records& records, const TokenPairs& pairs) {
  const double mean_abs = MeanAbsDelta(pairs);
  std::vector<Sign> signs;
  if (records.has(Column::kBehaviour)) {
    signs.push_back(
        RoundingSign(records, Column::kBehaviour, SignSide::kBehaviour, pairs.behaviour, mean_abs));
  }
  if (records.has(Column::kProximal)) {
    signs.push_back(
        RoundingSign(records, Column::kProximal, SignSide::kProximal, pairs.proximal, mean_abs));
  }
  return signs;
}

Sign LogBaseSign(const TokenPairs& pairs) {
  struct Base {
    double factor;
    const char* words;
  };
  constexpr Base kBases[] = {{1 / std::numbers::ln2,
                              "behaviour_logprobs are in base 2 (times 1 / ln 2), or "
                              "proximal_logprobs were multiplied by ln 2"},
                             {std::numbers::ln2,
                              "proximal_logprobs are in base 2 (times 1 / ln 2), or "
                              "behaviour_logprobs were multiplied by ln 2"},
                             {1 / std::numbers::ln10,
                              "behaviour_logprobs are in base 10 (times 1 / ln 10), or "
                              "proximal_logprobs were multiplied by ln 10"},
                             {std::numbers::ln10,
                              "proximal_logprobs are in base 10 (times 1 / ln 10), or "
                              "behaviour_logprobs were multiplied by ln 10"}};
  Sign sign{.id = "log_base"};
  const RatioMedian ratio = MedianRatio(pairs);
  if (ratio.count < 20) {
    sign.statement = "Too few uncertain tokens have values on both sides to compare their scales.";
    return sign;
  }
  sign.statistic = "median of behaviour / proximal";
  sign.value.value = ratio.median;
  for (const Base& base : kBases) {
    const double left = LeftAt(pairs, base.factor);
    // A temperature would change the ratio too, but not by the same factor at every token.
    if (std::abs(ratio.median / base.factor - 1) > 0.02 || ratio.spread > 0.08 || left > 0.2)
      continue;
    sign.verdict = SignVerdict::kShown;
    sign.accuses = true;
    sign.side = SignSide::kUnknown;
    sign.false_alarm_rate = kTestLevel;
    sign.statement = absl::StrFormat(
        "Of every uncertain token, the two log-probs have the ratio %.4f (half of them within %.2g "
        "%%): %s. That factor "
        "leaves %.2g %% of the difference.",
        ratio.median, 100 * ratio.spread, base.words, 100 * left);
    sign.command = "Write natural logs on both sides, and say the change in columns.transform.";
    return sign;
  }
  sign.verdict = SignVerdict::kRuledOut;
  sign.statement = absl::StrFormat(
      "Both sides are logs of one base: the median ratio of their values is %.4f.", ratio.median);
  const double off = std::abs(std::log(ratio.median));
  if (off > 0.1) {
    sign.verdict = SignVerdict::kCannotTell;
    sign.statement = absl::StrFormat(
        "The median ratio of the two sides' values is %.3f, which is that of no base of logs.",
        ratio.median);
  }
  return sign;
}

}  // namespace tandem::drift
