#include "drift_lab/screening/pattern_signs.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "drift_lab/screening/row_sums.h"

namespace tandem::drift {
namespace {

using offpolicy::ClusterSums;
using offpolicy::Interval;

// Upper ends of classes of log-probs, from certain to unlikely.
constexpr float kClassEnds[] = {-8,     -5,     -3,     -2,     -1.2F,  -0.7F,
                                -0.35F, -0.15F, -0.05F, -0.01F, -1e-3F, 0};
constexpr size_t kNumClasses = std::size(kClassEnds);
constexpr float kMostRelativeSize = 30;
constexpr double kLargeDelta = 1;  // nats; rounding in bf16 stays below

size_t ClassOf(float logprob) {
  size_t place = 0;
  while (place + 1 < kNumClasses && logprob > kClassEnds[place]) ++place;
  return place;
}

// Compares the mean r of two sets of tokens: `set_of(row, m)` is 0, 1, or another number for
// neither.
template <typename SetOf>
Interval RatioOfSets(const TokenPairs& pairs, std::span<const float> sizes, uint64_t seed,
                     const SetOf& set_of) {
  const ClusterSums clusters = SumRows(pairs, 4, [&](int64_t row, std::span<double> sums) {
    for (size_t m = pairs.begin_of(row); m < pairs.end_of(row); ++m) {
      const int set = set_of(row, m);
      if ((set != 0 && set != 1) || std::isnan(sizes[m])) continue;
      sums[static_cast<size_t>(2 * set)] += std::min(sizes[m], kMostRelativeSize);
      sums[static_cast<size_t>(2 * set + 1)] += 1;
    }
  });
  const offpolicy::Statistic ratio[] = {
      [](std::span<const double> s) { return s[2] / s[3] / (s[0] / s[1]); }};
  return offpolicy::BootstrapIntervals(clusters, ratio, {.level = 1 - kTestLevel, .seed = seed})[0];
}

Sign PatternSign(const char* id, const Interval& ratio, const char* statistic) {
  return {.id = id, .statistic = statistic, .value = ratio};
}

void Show(Sign& sign, std::string statement) {
  sign.verdict = SignVerdict::kShown;
  sign.accuses = true;
  sign.false_alarm_rate = kTestLevel;
  sign.statement = std::move(statement);
}

std::string Bounds(const Interval& ratio) {
  return absl::StrFormat("%.3g [%.3g, %.3g]", ratio.value, ratio.low, ratio.high);
}

Sign JudgeRatio(Sign sign, double least, const std::string& shown, const std::string& not_shown) {
  if (!sign.value.known()) {
    sign.statement = absl::StrCat("Too few rows to tell. ", not_shown);
  } else if (sign.value.low > least) {
    Show(sign, absl::StrCat(shown, " (ratio ", Bounds(sign.value), ")."));
  } else if (sign.value.high < least) {
    sign.verdict = SignVerdict::kRuledOut;
    sign.statement = absl::StrCat(not_shown, " (ratio ", Bounds(sign.value), ").");
  } else {
    sign.statement = absl::StrCat("Not certain: the ratio is ", Bounds(sign.value), ".");
  }
  return sign;
}

Sign FewTokensSign(const Records& records, const TokenPairs& pairs) {
  Sign sign{.id = "few_tokens", .statistic = "share of the sum of delta^2 in tokens beyond 1 nat"};
  double large = 0, all = 0;
  int64_t count = 0, tokens = 0;
  std::map<int32_t, int64_t> ids;
  for (size_t m = 0; m < pairs.place.size(); ++m) {
    const double delta = pairs.delta(m);
    if (!std::isfinite(delta)) continue;
    ++tokens;
    all += delta * delta;
    if (std::abs(delta) <= kLargeDelta) continue;
    large += delta * delta;
    ++count;
    ++ids[records.token_ids[static_cast<size_t>(pairs.place[m])]];
  }
  sign.value.value = all > 0 ? large / all : 0;
  if (count == 0) {
    sign.verdict = tokens > 0 ? SignVerdict::kRuledOut : SignVerdict::kCannotTell;
    sign.statement = "No token differs by more than 1 nat.";
    return sign;
  }
  const auto id = std::ranges::max_element(ids, {}, [](const auto& seen) { return seen.second; });
  const std::string numbers = absl::StrFormat(
      "%d of %d tokens (%.2g %%) differ by more than 1 nat and carry %.3g %% of the sum of delta^2",
      count, tokens, 100.0 * static_cast<double>(count) / static_cast<double>(tokens),
      100 * sign.value.value);
  if (count < 5 || count * 50 > tokens || sign.value.value < 0.5) {
    sign.statement = absl::StrCat(numbers, ".");
    return sign;
  }
  Show(sign,
       absl::StrCat(
           numbers,
           id->second * 5 >= count * 4
               ? absl::StrCat("; ", id->second, " of them are token ", id->first,
                              ": a token that was forced or banned.")
               : ": bursts, such as those of expert routing, and not one cause for all tokens."));
  return sign;
}

// The mean r of a row, and its share of the squares.
struct RowSize {
  int64_t row;
  double mean, squares;
};

std::optional<int64_t> LagOf(const RowFacts& facts) {
  if (facts.spans.empty() || !facts.proximal_version.has_value()) return std::nullopt;
  return *facts.proximal_version - facts.spans.front().version;
}

// What the versions say of rows that differ far more than the others.
struct VersionsOfRows {
  std::string words;
  bool declare_lag = false;  // each of those rows says that it was drawn by older weights
};
VersionsOfRows VersionsOf(const Records& records, std::span<const RowSize> rows, double bound) {
  double far = 0, near = 0, num_far = 0, num_near = 0, lagging = 0;
  for (const RowSize& size : rows) {
    const RowFacts& facts = records.rows[static_cast<size_t>(size.row)];
    if (facts.spans.empty()) return {};
    (size.mean > bound ? far : near) += static_cast<double>(facts.spans.front().version);
    (size.mean > bound ? num_far : num_near) += 1;
    lagging += size.mean > bound && LagOf(facts).value_or(0) > 0;
  }
  if (num_far == 0 || num_near == 0) return {};
  VersionsOfRows versions{.declare_lag = lagging == num_far};
  if (far / num_far != near / num_near)
    versions.words = absl::StrFormat(" Their mean weight version is %.4g, that of the others %.4g.",
                                     far / num_far, near / num_near);
  if (versions.declare_lag)
    versions.words +=
        " By their versions, older weights than the proximal policy's drew each of them, and an "
        "update that was trained on some rows moves those most.";
  return versions;
}

Sign SomeRowsSign(const Records& records, const TokenPairs& pairs, std::span<const float> sizes) {
  Sign sign{.id = "some_rows",
            .statistic = "share of rows whose mean is over 8 times the median row's"};
  std::vector<RowSize> rows;
  double all = 0;
  for (int64_t row = 0; row < pairs.num_rows(); ++row) {
    double sum = 0, squares = 0, count = 0;
    for (size_t m = pairs.begin_of(row); m < pairs.end_of(row); ++m) {
      if (std::isnan(sizes[m])) continue;
      sum += std::min(sizes[m], kMostRelativeSize);  // so that one token does not make a row
      squares += pairs.delta(m) * pairs.delta(m);
      count += 1;
    }
    all += squares;
    if (count >= 8) rows.push_back({row, sum / count, squares});
  }
  if (rows.size() < 16) {
    sign.statement = "Too few rows of eight tokens or more to tell whether some differ.";
    return sign;
  }
  std::vector<double> means;
  for (const RowSize& row : rows) means.push_back(row.mean);
  std::ranges::nth_element(means, means.begin() + std::ssize(means) / 2);
  const double bound = 8 * means[means.size() / 2];
  double carried = 0;
  int64_t count = 0;
  for (const RowSize& row : rows) {
    if (!(row.mean > bound)) continue;
    ++count;
    carried += row.squares;
  }
  sign.value.value = static_cast<double>(count) / static_cast<double>(rows.size());
  if (count >= 3 && carried > 0.5 * all && bound > 0) {
    const VersionsOfRows versions = VersionsOf(records, rows, bound);
    Show(sign,
         absl::StrFormat("%d of %d rows differ by over 8 times the median row and carry %.3g "
                         "%% of the sum of delta^2: "
                         "look at what those rows have in common (an update on them, weights, "
                         "prompt, cache, padding).%s",
                         count, rows.size(), 100 * carried / all, versions.words));
    sign.accuses = !versions.declare_lag;
    return sign;
  }
  sign.verdict = count == 0 ? SignVerdict::kRuledOut : SignVerdict::kCannotTell;
  sign.statement =
      count == 0 ? "No row differs by over 8 times what the median row does."
                 : absl::StrFormat("%d of %d rows differ by over 8 times what the median row does.",
                                   count, rows.size());
  return sign;
}

void AppendPosition(const TokenPairs& pairs, std::span<const float> sizes, uint64_t seed,
                    std::vector<Sign>& signs) {
  constexpr size_t kLeastLength = 16;
  const Interval growth = RatioOfSets(pairs, sizes, seed, [&](int64_t row, size_t m) {
    const size_t length = pairs.length_of(row), t = m - pairs.begin_of(row);
    return length < kLeastLength ? -1 : t * 4 < length ? 0 : t * 4 >= length * 3 ? 1 : -1;
  });
  signs.push_back(JudgeRatio(
      PatternSign("position", growth, "last over first quarter of rows"), 1.6,
      "The sides differ more late in rows than early, which numbers alone do not explain; an "
      "attention window, a rotary base, a rounded KV cache, a cut context or a penalty on tokens "
      "that "
      "were drawn before does it, and so do tokens that come late",
      "The sides differ by no more late in rows than early"));
  const Interval first = RatioOfSets(pairs, sizes, seed, [&](int64_t row, size_t m) {
    return pairs.length_of(row) < kLeastLength ? -1 : m == pairs.begin_of(row) ? 1 : 0;
  });
  signs.push_back(JudgeRatio(
      PatternSign("first_token", first, "first drawn token over the others"), 3,
      "The first drawn token differs far more than the others; another template, a missing or "
      "doubled first token or another end of the prompt does it",
      "The first drawn token differs no more than the others"));
}

Sign LengthSign(const TokenPairs& pairs, std::span<const float> sizes, uint64_t seed) {
  std::vector<size_t> lengths;
  for (int64_t row = 0; row < pairs.num_rows(); ++row) lengths.push_back(pairs.length_of(row));
  std::ranges::sort(lengths);
  Sign sign{.id = "length",
            .statement = "The rows are too few, or too much of one length, to tell."};
  if (lengths.size() < 24 ||
      lengths[lengths.size() * 2 / 3] < 2 * std::max<size_t>(4, lengths[lengths.size() / 3]))
    return sign;
  const size_t low = lengths[lengths.size() / 3], high = lengths[lengths.size() * 2 / 3];
  const Interval ratio = RatioOfSets(pairs, sizes, seed, [&](int64_t row, size_t) {
    return pairs.length_of(row) <= low ? 0 : pairs.length_of(row) >= high ? 1 : -1;
  });
  return JudgeRatio(PatternSign("length", ratio, "long rows over short rows"), 1.6,
                    "Long rows differ more than short ones",
                    "Long rows differ no more than short ones");
}

Sign StalenessSign(const Records& records, const TokenPairs& pairs, std::span<const float> sizes,
                   uint64_t seed) {
  std::map<int64_t, int64_t> lags;
  for (const RowFacts& row : records.rows) {
    if (const auto lag = LagOf(row); lag.has_value()) ++lags[*lag];
  }
  Sign sign{.id = "staleness",
            .statement =
                "Whether older weights are behind it needs version_spans (or weight_version) and "
                "proximal_version, which the record does not have."};
  if (lags.empty()) return sign;
  if (lags.size() == 1) {
    sign.statement = absl::StrFormat(
        "All rows were drawn %d versions before the proximal policy, so that rows of other "
        "versions cannot be compared.",
        lags.begin()->first);
    if (lags.begin()->first == 0) {
      sign.verdict = SignVerdict::kRuledOut;
      sign.statement =
          "By their versions, all rows were drawn by the weights of the proximal policy: nothing "
          "is stale, unless the versions are wrong.";
    }
    return sign;
  }
  const int64_t least = lags.begin()->first;
  const Interval ratio = RatioOfSets(pairs, sizes, seed, [&](int64_t row, size_t) {
    const auto lag = LagOf(records.rows[static_cast<size_t>(row)]);
    return !lag.has_value() ? -1 : *lag == least ? 0 : 1;
  });
  sign = JudgeRatio(
      PatternSign("staleness", ratio, "older versions over the newest"), 1.3,
      "Rows of older versions differ more than those of the newest: staleness is part of it",
      "Rows of older versions differ no more than those of the newest");
  sign.accuses = false;  // the versions declare it
  return sign;
}

Sign StepsSign(const Records& records, const TokenPairs& pairs, std::span<const float> sizes,
               uint64_t seed) {
  std::vector<int64_t> steps;
  for (const RowFacts& row : records.rows) {
    if (row.step.has_value()) steps.push_back(*row.step);
  }
  std::ranges::sort(steps);
  const auto distinct = std::ranges::unique(steps);
  steps.erase(distinct.begin(), distinct.end());
  Sign sign{.id = "steps", .statement = "Growth over a run needs rows of six steps or more."};
  if (steps.size() < 6) return sign;
  const int64_t early = steps[steps.size() / 3], late = steps[steps.size() * 2 / 3];
  double lag_sum[2] = {}, lag_count[2] = {};
  const auto set_of = [&](int64_t row, size_t) {
    const auto& step = records.rows[static_cast<size_t>(row)].step;
    return !step.has_value() ? -1 : *step < early ? 0 : *step >= late ? 1 : -1;
  };
  for (int64_t row = 0; row < records.num_rows(); ++row) {
    const int set = set_of(row, 0);
    const auto lag = LagOf(records.rows[static_cast<size_t>(row)]);
    if (set < 0 || !lag.has_value()) continue;
    lag_sum[set] += static_cast<double>(*lag);
    lag_count[set] += 1;
  }
  const Interval ratio = RatioOfSets(pairs, sizes, seed, set_of);
  std::string why =
      ". Weights that are never delivered, or an adapter that is bound to nothing, do this, and so "
      "does growing staleness; versions (version_spans, proximal_version) would tell";
  if (lag_count[0] > 0 && lag_count[1] > 0) {
    const double before = lag_sum[0] / lag_count[0], after = lag_sum[1] / lag_count[1];
    why = after > before + 0.5
              ? absl::StrFormat(
                    ", while the lag of versions grew from %.3g to %.3g: as staleness does", before,
                    after)
              : absl::StrFormat(
                    ", while the lag of versions stayed at %.3g: weights that are not delivered, "
                    "or an adapter that is bound to nothing, do this and staleness does not",
                    after);
  }
  return JudgeRatio(PatternSign("steps", ratio, "last over first third of steps"), 2,
                    absl::StrCat("The sides differ more and more over the steps", why),
                    "The sides differ by no more in late steps than in early ones");
}

}  // namespace

std::vector<float> RelativeSizes(const TokenPairs& pairs) {
  double sums[kNumClasses] = {}, counts[kNumClasses] = {}, sum = 0, count = 0;
  const size_t num = pairs.place.size();
  for (size_t m = 0; m < num; ++m) {
    const double size = std::abs(pairs.delta(m));
    if (!std::isfinite(size)) continue;
    const size_t c = ClassOf(pairs.behaviour[m]);
    sums[c] += size;
    counts[c] += 1;
    sum += size;
    count += 1;
  }
  // Classes of next to certain tokens have hardly any delta, and their r would be all tail.
  const double floor = count > 0 ? 0.05 * sum / count : 0;
  std::vector<float> sizes(num, std::numeric_limits<float>::quiet_NaN());
  for (size_t m = 0; m < num; ++m) {
    const double size = std::abs(pairs.delta(m));
    if (!std::isfinite(size)) continue;
    const size_t c = ClassOf(pairs.behaviour[m]);
    const double expected = std::max(sums[c] / counts[c], floor);
    sizes[m] = expected > 0 ? static_cast<float>(size / expected) : 0;
  }
  return sizes;
}

std::vector<Sign> PatternSigns(const Records& records, const TokenPairs& pairs, uint64_t seed) {
  const std::vector<float> sizes = RelativeSizes(pairs);
  std::vector<Sign> signs = {SomeRowsSign(records, pairs, sizes), FewTokensSign(records, pairs)};
  if (signs[0].verdict == SignVerdict::kShown && signs[1].accuses) {  // the rows hold the tokens
    signs[1].accuses = false;
    signs[1].verdict = SignVerdict::kSuspected;
  }
  AppendPosition(pairs, sizes, seed, signs);
  signs.push_back(LengthSign(pairs, sizes, seed));
  signs.push_back(StepsSign(records, pairs, sizes, seed));
  signs.push_back(StalenessSign(records, pairs, sizes, seed));
  return signs;
}

}  // namespace tandem::drift
