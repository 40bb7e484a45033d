#include "drift_lab/screening/alignment_signs.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <map>
#include <optional>
#include <random>
#include <span>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/statistics/distributions.h"
#include "drift_lab/diagnosis/record_shift.h"

namespace tandem::drift {
namespace {

constexpr size_t kMostShiftRows = 256;
constexpr size_t kMostExchangeRows = 400;
constexpr int64_t kMostShiftTokens = 1024;  // of a row that is searched for large shifts
constexpr int64_t kLeastOverlap = 8;
constexpr int64_t kMostOverlap = 24;  // of two rows that are compared
constexpr double kFourTimes = 4;
constexpr double kMostOfSameRow = 0.2;  // nats between two engines' values of one row
// The mean distance of values from their mean below which a match says nothing: all are near 0.
constexpr double kLeastSpread = 0.2;

// What two series have in common at a shift.
struct Match {
  double distance =
      std::numeric_limits<double>::infinity();  // mean abs(record[t] - other[t - shift])
  double spread = 0;                            // of `other` over the same tokens
  int64_t overlap = 0;
};

Match MatchAt(std::span<const float> record, std::span<const float> other, int64_t shift) {
  const auto n = static_cast<int64_t>(std::min(record.size(), other.size()));
  double sum = 0, values = 0, squares = 0;
  Match match;
  for (int64_t t = std::max<int64_t>(0, shift); t < n + std::min<int64_t>(0, shift); ++t) {
    const double b = other[static_cast<size_t>(t - shift)];
    const double difference = record[static_cast<size_t>(t)] - b;
    if (!std::isfinite(difference)) continue;
    sum += std::abs(difference);
    values += b;
    squares += b * b;
    ++match.overlap;
  }
  if (match.overlap == 0) return match;
  const auto count = static_cast<double>(match.overlap);
  match.distance = sum / count;
  match.spread = std::sqrt(std::max(0.0, squares / count - values / count * values / count));
  return match;
}

std::vector<int64_t> SomeRows(const TokenPairs& pairs, size_t most, uint64_t seed) {
  std::vector<int64_t> rows;
  for (int64_t row = 0; row < pairs.num_rows(); ++row) {
    if (static_cast<int64_t>(pairs.length_of(row)) >= kLeastShiftTokens) rows.push_back(row);
  }
  std::mt19937_64 random(seed);
  for (size_t i = 0; i + 1 < rows.size() && i < most; ++i) {
    std::swap(rows[i], rows[i + random() % (rows.size() - i)]);
  }
  rows.resize(std::min(rows.size(), most));
  std::ranges::sort(rows);
  return rows;
}

// A row that is out of place, with the shift that puts it right (0: none does).
struct OutOfPlace {
  int64_t row = 0;
  int64_t shift = 0;
  double in_place = 0, at_shift = 0;
};

// The shift at which the row's sides are four times nearer than in place; 0 if there is none.
OutOfPlace BestShift(const TokenPairs& pairs, int64_t row) {
  const auto record = pairs.behaviour_of(row), other = pairs.proximal_of(row);
  OutOfPlace found{.row = row, .in_place = MatchAt(record, other, 0).distance};
  const auto n = static_cast<int64_t>(record.size());
  const auto searched = std::min(n, kMostShiftTokens);
  const auto short_record = record.first(static_cast<size_t>(searched));
  const auto short_other = other.first(static_cast<size_t>(searched));
  double least = found.in_place / kFourTimes;
  const auto consider = [&](int64_t shift) {
    const bool is_small = std::abs(shift) <= kMaxShift;
    const Match match = MatchAt(short_record, short_other, shift);
    const int64_t needed =
        is_small ? kLeastShiftTokens - kMaxShift : std::max(kLeastOverlap, searched / 4);
    if (match.overlap < needed || match.spread < kLeastSpread || !(match.distance < least)) return;
    least = match.distance;
    found.shift = shift;
    found.at_shift = match.distance;
  };
  for (int64_t distance = 1; distance <= searched - kLeastOverlap || distance <= kMaxShift;
       ++distance) {
    consider(distance);
    consider(-distance);
  }
  return found;
}

// A rule that gives the shift of every row.
struct ShiftRule {
  std::string id, words;
  std::map<int64_t, int64_t> shift;  // by row; a shift of 0 tells nothing
};

std::vector<ShiftRule> ShiftRules(const Records& records, const TokenPairs& pairs,
                                  std::span<const OutOfPlace> found) {
  int64_t longest = 0;
  for (int64_t row = 0; row < pairs.num_rows(); ++row) {
    longest = std::max(longest, static_cast<int64_t>(pairs.length_of(row)));
  }
  std::map<int64_t, int64_t> constants;
  for (const OutOfPlace& row : found) constants[row.shift] += row.shift != 0;
  const auto common =
      std::ranges::max_element(constants, {}, [](const auto& c) { return c.second; });
  std::vector<ShiftRule> rules;
  const int64_t by = common == constants.end() ? 0 : common->first;
  rules.push_back(
      {"shift", absl::StrCat("by ", std::abs(by), std::abs(by) == 1 ? " token" : " tokens"), {}});
  rules.push_back(
      {"prompt_shift",
       "by the length of their prompts: the values of one side begin with those of the prompt",
       {}});
  rules.push_back({"prompt_shift",
                   "by the length of their prompts, in the other direction: as many values are "
                   "missing at the beginning",
                   {}});
  rules.push_back({"padding_shift",
                   "by their padding: one side was padded on the left and read as padded on the "
                   "right, or the other way round",
                   {}});
  rules.push_back(rules.back());
  for (const OutOfPlace& row : found) {
    const auto length = static_cast<int64_t>(pairs.length_of(row.row));
    const int64_t prompt = pairs.place[pairs.begin_of(row.row)] - records.begin_of(row.row);
    rules[0].shift[row.row] = by;
    rules[1].shift[row.row] = prompt;
    rules[2].shift[row.row] = -prompt;
    rules[3].shift[row.row] = longest - length;
    rules[4].shift[row.row] = length - longest;
  }
  // A large constant is more likely the length of prompts that are equally long.
  if (std::abs(by) > kMaxShift) std::ranges::rotate(rules, rules.begin() + 1);
  return rules;
}

Sign ShiftSign(const ShiftRule& rule, std::span<const OutOfPlace> found, int64_t agree,
               int64_t examined) {
  double in_place = 0, at_shift = 0;
  int64_t direction = 0;
  for (const OutOfPlace& row : found) {
    if (row.shift == 0 || rule.shift.at(row.row) != row.shift) continue;
    in_place += row.in_place / static_cast<double>(agree);
    at_shift += row.at_shift / static_cast<double>(agree);
    direction = row.shift;
  }
  const offpolicy::ShareInterval share = offpolicy::JeffreysInterval(agree, examined, 0.95);
  const double fraction = static_cast<double>(agree) / static_cast<double>(examined);
  return {.id = rule.id,
          .verdict = SignVerdict::kShown,
          .accuses = true,
          .statement = absl::StrFormat("%d of %d rows are shifted %s: behaviour_logprobs[t] "
                                       "belongs to proximal_logprobs[t %s %d]. In place the "
                                       "sides differ by %.3g nats a token, at this shift by %.3g.",
                                       agree, examined, rule.words, direction > 0 ? "-" : "+",
                                       std::abs(direction), in_place, at_shift),
          .statistic = "share of rows shifted",
          .value = {.value = fraction, .low = share.low, .high = share.high},
          .false_alarm_rate = kTestLevel,
          .command =
              "Shift one side in the exporter, so that element t of each is about token t given "
              "the tokens "
              "before it, and write the file again."};
}

// The distance at shifts of -2 .. 2, over all rows.
struct PooledDistances {
  double at[2 * kMaxShift + 1] = {};
  double nearest_elsewhere = std::numeric_limits<double>::infinity();
  double in_place() const { return at[kMaxShift]; }
};

PooledDistances PoolDistances(const TokenPairs& pairs, std::span<const int64_t> rows) {
  PooledDistances pooled;
  for (int shift = -kMaxShift; shift <= kMaxShift; ++shift) {
    double sum = 0, count = 0;
    for (const int64_t row : rows) {
      const Match match = MatchAt(pairs.behaviour_of(row), pairs.proximal_of(row), shift);
      if (match.overlap == 0) continue;
      sum += match.distance * static_cast<double>(match.overlap);
      count += static_cast<double>(match.overlap);
    }
    const double distance = count > 0 ? sum / count : std::numeric_limits<double>::quiet_NaN();
    pooled.at[shift + kMaxShift] = distance;
    if (shift != 0 && distance < pooled.nearest_elsewhere) pooled.nearest_elsewhere = distance;
  }
  return pooled;
}

// The mean distance of the first tokens of two rows, over those where both have a value; infinite if
// those are few, or if it is above `most`.
double RowDistance(std::span<const float> a, std::span<const float> b, double most) {
  const size_t n = std::min({a.size(), b.size(), static_cast<size_t>(kMostOverlap)});
  const double bound = most * static_cast<double>(n);
  double sum = 0;
  int64_t overlap = 0;
  for (size_t t = 0; t < n && sum <= bound; ++t) {
    const double difference = std::abs(static_cast<double>(a[t]) - b[t]);
    if (!std::isfinite(difference)) continue;
    sum += difference;
    ++overlap;
  }
  if (overlap < kLeastOverlap || sum > bound) return std::numeric_limits<double>::infinity();
  return sum / static_cast<double>(overlap);
}

// Rows of which one side fits another row far better than its own.
std::optional<Sign> OtherRowsSign(const Records& records, const TokenPairs& pairs,
                                  std::span<const int64_t> rows) {
  int64_t out = 0, matched = 0, example = -1, example_of = -1;
  std::map<int64_t, int64_t> offsets;
  double own = 0, other = 0;
  for (const int64_t row : rows) {
    const auto proximal = pairs.proximal_of(row);
    const Match in_place =
        MatchAt(pairs.behaviour_of(row).first(std::min<size_t>(proximal.size(), kMostOverlap)),
                proximal, 0);
    if (in_place.overlap < kLeastOverlap || in_place.distance <= 2 * kInPlace ||
        in_place.spread < kLeastSpread)
      continue;
    ++out;
    int64_t best = -1;
    // Many rows are tried, so that a match must be a close one as well.
    double least = std::min(in_place.distance / kFourTimes, kMostOfSameRow);
    for (int64_t candidate = 0; candidate < pairs.num_rows(); ++candidate) {
      if (candidate == row) continue;
      const double distance = RowDistance(pairs.behaviour_of(candidate), proximal, least);
      if (!(distance < least)) continue;
      least = distance;
      best = candidate;
    }
    if (best < 0) continue;
    ++matched;
    ++offsets[best - row];
    own += in_place.distance;
    other += least;
    example = example < 0 ? row : example;
    example_of = example_of < 0 ? best : example_of;
  }
  if (matched < 3 || matched * 2 < out) return std::nullopt;
  const auto common = std::ranges::max_element(offsets, {}, [](const auto& o) { return o.second; });
  const std::string order =
      common->second * 5 >= matched * 4
          ? absl::StrCat("those of row r stand in row r ", common->first > 0 ? "+ " : "- ",
                         std::abs(common->first))
          : std::string("in no order");
  const offpolicy::ShareInterval share =
      offpolicy::JeffreysInterval(matched, std::ssize(rows), 0.95);
  const auto count = static_cast<double>(matched);
  return Sign{
      .id = "other_rows",
      .verdict = SignVerdict::kShown,
      .accuses = true,
      .statement = absl::StrFormat(
          "%d of %d rows have the values of another row in one of the two columns (%s, if "
          "behaviour_logprobs is the one): the columns differ by %.3g nats a token within a row, "
          "and by "
          "%.3g from the other row. For example, those of %s stand in %s.",
          matched, rows.size(), order, own / count, other / count, NameOfRow(records, example),
          NameOfRow(records, example_of)),
      .statistic = "share of rows exchanged",
      .value = {.value = count / static_cast<double>(rows.size()),
                .low = share.low,
                .high = share.high},
      .false_alarm_rate = kTestLevel,
      .command =
          "Join the two sides by an id of the completion and not by their place in a batch, and "
          "write the "
          "file again."};
}

std::optional<Sign> ShiftSignOf(const Records& records, const TokenPairs& pairs,
                                std::span<const int64_t> rows) {
  std::vector<OutOfPlace> found;
  int64_t shifted = 0;
  for (const int64_t row : rows) {
    const double in_place = MatchAt(pairs.behaviour_of(row), pairs.proximal_of(row), 0).distance;
    if (!(in_place > kInPlace)) continue;  // also of rows without a pair
    found.push_back(BestShift(pairs, row));
    shifted += found.back().shift != 0;
  }
  // The rule that most rows follow; of equals the first, which is the simplest.
  const std::vector<ShiftRule> rules = ShiftRules(records, pairs, found);
  const auto followers = [&](const ShiftRule& rule) {
    return std::ranges::count_if(found, [&](const OutOfPlace& row) {
      return row.shift != 0 && rule.shift.at(row.row) == row.shift;
    });
  };
  const auto best = std::ranges::max_element(rules, {}, followers);
  const int64_t agree = followers(*best);
  if (agree < 3 || agree * 10 < shifted * 6 || agree * 7 < std::ssize(found)) return std::nullopt;
  return ShiftSign(*best, found, agree, std::ssize(rows));
}

}  // namespace

Alignment AlignmentSigns(const Records& records, const TokenPairs& pairs, uint64_t seed) {
  Alignment alignment;
  const std::vector<int64_t> rows = SomeRows(pairs, kMostShiftRows, seed);
  const PooledDistances pooled = PoolDistances(pairs, rows);
  Sign shift{
      .id = "shift",
      .statement = "Too few rows have values on both sides to tell whether they are shifted."};
  if (rows.size() < 3 || !std::isfinite(pooled.in_place())) {
    alignment.signs.push_back(shift);
    return alignment;
  }
  if (std::optional<Sign> sign = ShiftSignOf(records, pairs, rows); sign.has_value()) {
    alignment.signs.push_back(*std::move(sign));
    alignment.in_place = false;
    return alignment;
  }
  const std::vector<int64_t> compared = SomeRows(pairs, kMostExchangeRows, seed + 1);
  if (std::optional<Sign> sign = OtherRowsSign(records, pairs, compared); sign.has_value()) {
    alignment.signs.push_back(*std::move(sign));
    alignment.in_place = false;
    return alignment;
  }
  shift.statistic = "distance in place over the nearest at -2 .. 2";
  shift.value.value = pooled.in_place() / pooled.nearest_elsewhere;
  if (pooled.in_place() < pooled.nearest_elsewhere / 2) {
    shift.verdict = SignVerdict::kRuledOut;
    shift.statement = absl::StrFormat(
        "The values are at the right tokens: in place the sides differ by %.3g nats a token, "
        "shifted by one or two "
        "tokens by %.3g or more.",
        pooled.in_place(), pooled.nearest_elsewhere);
  } else if (pooled.in_place() > 2 * kInPlace) {
    alignment.in_place = pooled.in_place() < 0.8 * pooled.nearest_elsewhere;
    shift.id = alignment.in_place ? "shift" : "unrelated";
    shift.verdict = alignment.in_place ? SignVerdict::kCannotTell : SignVerdict::kNeedsWeights;
    shift.statement = absl::StrFormat(
        "The two sides have little in common: in place they differ by %.3g nats a token, at the "
        "nearest of the "
        "shifts by %.3g. No shift and no exchange of rows that was tried brings them together.",
        pooled.in_place(), pooled.nearest_elsewhere);
  } else {
    shift.statement = "The values vary too little to tell whether they are shifted.";
  }
  alignment.signs.push_back(shift);
  return alignment;
}

}  // namespace tandem::drift
