#include "drift_lab/screening/value_signs.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <map>
#include <set>
#include <span>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "drift_lab/records/records.h"
#include "drift_lab/screening/distribution_signs.h"

namespace tandem::drift {
namespace {

constexpr float kNoValue = std::numeric_limits<float>::quiet_NaN();
// Nobody draws a token of this log-prob.
constexpr float kNeverDrawn = -50;
// A value of 0 says that the token was certain. The other side denies it if it gives less. A filter
// that left one token makes zeros as well, but hardly of tokens with a probability below a tenth.
constexpr float kNotCertain = -0.1F, kUnlikely = -2.3F;

// One side of the pairs, and the other, at the drawn tokens.
struct SideValues {
  Column column;
  SignSide side;
  std::vector<float>* values;
  const std::vector<float>* other;
  std::string name() const { return ColumnName(column); }
};

Sign ShownFault(const char* id, SignSide side, std::string statement) {
  return {.id = id,
          .verdict = SignVerdict::kShown,
          .side = side,
          .accuses = true,
          .statement = std::move(statement),
          .false_alarm_rate = kTestLevel};
}

std::string Of(int64_t count, int64_t all) {
  return absl::StrFormat(
      "%d of %d (%.3g %%)", count, all,
      all == 0 ? 0.0 : 100.0 * static_cast<double>(count) / static_cast<double>(all));
}

// Where in their rows the tokens are that `is` marks: in words, or empty if they are scattered.
template <typename Marked>
std::string WhereInRows(const TokenPairs& pairs, const Marked& is) {
  int64_t marked = 0, last = 0, first = 0, tails = 0, whole = 0, rows = 0;
  for (int64_t row = 0; row < pairs.num_rows(); ++row) {
    const size_t begin = pairs.begin_of(row), end = pairs.end_of(row);
    if (begin == end) continue;
    int64_t here = 0, tail = 0;
    for (size_t m = begin; m < end; ++m) here += is(m);
    for (size_t m = end; m > begin && is(m - 1); --m) ++tail;
    marked += here;
    rows += here > 0;
    if (here == static_cast<int64_t>(end - begin)) {
      whole += here;
    } else {
      tails += tail;
      last += is(end - 1);
      first += is(begin);
    }
  }
  const auto most = [&](int64_t n) { return n > 0 && n * 10 >= marked * 9; };
  if (most(whole)) return absl::StrCat(", whole rows of them (", rows, " rows)");
  if (most(last)) return absl::StrCat(", each the last drawn token of its row (", rows, " rows)");
  if (most(first)) return absl::StrCat(", each the first drawn token of its row (", rows, " rows)");
  if (most(tails)) return absl::StrCat(", all at the end of their rows (", rows, " rows)");
  return absl::StrCat(", in ", rows, " rows");
}

void AppendMissing(const Records& records, const TokenPairs& pairs, const SideValues& side,
                   std::vector<Sign>& signs) {
  if (!records.has(side.column)) {
    signs.push_back({.id = "missing_values",
                     .verdict = SignVerdict::kShown,
                     .side = side.side,
                     .statement = absl::StrCat("The file has no ", side.name(),
                                               ", so that nothing can be compared with it.")});
    return;
  }
  const std::vector<float>& values = *side.values;
  const auto is_missing = [&](size_t m) { return std::isnan(values[m]); };
  int64_t missing = 0;
  for (size_t m = 0; m < values.size(); ++m) missing += is_missing(m);
  if (missing > 0) {
    signs.push_back(
        ShownFault("missing_values", side.side,
                   absl::StrCat(side.name(), " has no value for ", Of(missing, pairs.num_tokens()),
                                " drawn tokens", WhereInRows(pairs, is_missing),
                                ". They are left out of every number here.")));
  }
  const int64_t nans = records.num_nan[static_cast<size_t>(side.column)];
  if (nans > 0) {
    signs.push_back(ShownFault("nan_values", side.side,
                               absl::StrCat(side.name(), " has ", nans,
                                            " values that are NaN: the engine computed no "
                                            "number for them.")));
  }
}

// Values above 0: probabilities, or log-probs with the other sign, or sentinels.
void AppendPositive(const TokenPairs& pairs, const SideValues& side, std::vector<Sign>& signs) {
  std::vector<float>& values = *side.values;
  int64_t positive = 0, ones = 0, negative = 0, above_one = 0;
  for (const float x : values) {
    positive += x > 1e-3F;
    ones += x == 1.0F;
    above_one += x > 1.0F;
    negative += x < -1e-3F;
  }
  if (positive == 0) return;
  if (negative == 0 && positive > ones) {
    const bool shares = above_one == 0;
    signs.push_back(ShownFault(
        shares ? "probabilities" : "negated", side.side,
        shares ? absl::StrCat("All values of ", side.name(),
                              " lie in [0, 1]: they are probabilities, not their logs.")
               : absl::StrCat("All values of ", side.name(),
                              " are 0 or more: they are log-probs with the sign changed.")));
    for (float& x : values) x = shares ? std::log(x) : -x;
    signs.back().command = "Write natural logs of probabilities, which are 0 or less.";
    return;
  }
  const auto is_positive = [&](size_t m) { return values[m] > 1e-3F; };
  const std::string where = WhereInRows(pairs, is_positive);
  signs.push_back(ShownFault(
      ones * 2 >= positive ? "sentinel_values" : "positive_values", side.side,
      ones * 2 >= positive
          ? absl::StrCat(side.name(), " is exactly 1.0 at ", Of(ones, pairs.num_tokens()),
                         " drawn tokens", where, ": a number that stands for \"no value\".")
          : absl::StrCat(side.name(), " is above 0 at ", Of(positive, pairs.num_tokens()),
                         " drawn tokens", where, ", which no log-prob is.")));
  for (float& x : values) {
    if (x > 1e-3F) x = kNoValue;
  }
}

// What -inf of a drawn token means where the side claims `filters`. Two engines that apply one filter
// differ at its edge, since rounding decides which tokens it keeps.
std::string NoProbability(const std::string& filters) {
  return filters.empty() ? ": a token of probability 0 is not drawn, so that this side bans or "
                           "filters what the "
                           "other draws, or has no value there."
                         : absl::StrCat(": the filter that this side claims (", filters,
                                        ") left them out, and the other side's did not.");
}

// Very low values: -inf, -9999 and the like.
void AppendLow(const TokenPairs& pairs, const SideValues& side, const SideClaims& claims,
               std::vector<Sign>& signs) {
  std::vector<float>& values = *side.values;
  std::map<float, int64_t> lows;
  for (const float x : values) {
    if (x <= kNeverDrawn && lows.size() < 1000) ++lows[x];
  }
  if (lows.empty()) return;
  const auto common =
      std::ranges::max_element(lows, {}, [](const auto& low) { return low.second; });
  const bool is_behaviour = side.side == SignSide::kBehaviour;
  const std::set<float> known = {-100.0F,   -999.0F, -1000.0F, -9999.0F,
                                 -10000.0F, -1e5F,   -1e6F,    -1e9F};
  const float value = common->first;
  const bool stands_for_none = std::isinf(value) || known.contains(value) || common->second > 1;
  if (!stands_for_none && !is_behaviour) return;  // a trainer may well find a token impossible
  int64_t count = 0;
  const auto is_low = [&](size_t m) {
    return stands_for_none && !is_behaviour ? values[m] == value : values[m] <= kNeverDrawn;
  };
  for (size_t m = 0; m < values.size(); ++m) count += is_low(m);
  const std::string where = WhereInRows(pairs, is_low);
  const std::string filters = is_behaviour ? "" : ClaimedFilters(claims);
  const std::string what = absl::StrCat(side.name(), " is ", absl::StrFormat("%g", value), " at ",
                                        Of(common->second, pairs.num_tokens()), " drawn tokens");
  signs.push_back(ShownFault(
      "sentinel_values", side.side,
      stands_for_none ? absl::StrCat(what, where,
                                     std::isinf(value) ? NoProbability(filters)
                                                       : ": a number that stands for \"no value\".")
                      : absl::StrCat(side.name(), " is below ", kNeverDrawn, " at ",
                                     Of(count, pairs.num_tokens()), " drawn tokens", where,
                                     ": such a token is never drawn.")));
  signs.back().accuses = !(std::isinf(value) && !filters.empty() && !is_behaviour);
  std::vector<bool> out(values.size());
  for (size_t m = 0; m < values.size(); ++m) out[m] = is_low(m);
  for (size_t m = 0; m < values.size(); ++m) {
    if (out[m]) values[m] = kNoValue;
  }
}

// True if the values that are not 0 lie near those of the other side, compared with how much they
// vary. In rows that are shifted or of other completions, zeros meet uncertain tokens as well.
bool OthersAgree(const SideValues& side) {
  double sum = 0, count = 0, away = 0, apart = 0;
  const auto is_used = [&](size_t m) {
    return (*side.values)[m] != 0 && std::isfinite((*side.values)[m]) &&
           std::isfinite((*side.other)[m]);
  };
  for (size_t m = 0; m < side.values->size(); ++m) {
    if (!is_used(m)) continue;
    sum += (*side.values)[m];
    count += 1;
  }
  for (size_t m = 0; m < side.values->size(); ++m) {
    if (!is_used(m)) continue;
    away += std::abs((*side.values)[m] - sum / count);
    apart += std::abs((*side.values)[m] - (*side.other)[m]);
  }
  return count >= 10 && apart < 0.5 * away;
}

// How often a side is 0, at the ends of rows (`longest`: most zeros in a row's end) and elsewhere,
// and how often the other side denies it.
struct ZeroCounts {
  int64_t given = 0, rows = 0, all = 0, last = 0, elsewhere = 0, longest = 0;
  int64_t unlikely = 0, last_denied = 0, last_with_other = 0;
  double rate() const {
    return static_cast<double>(elsewhere) / static_cast<double>(std::max<int64_t>(1, given - rows));
  }
};

bool IsDeniedZero(const SideValues& side, size_t m, float least) {
  return (*side.values)[m] == 0 && (*side.other)[m] < least;
}

// Where the zeros begin that end a row of tokens [begin, end).
size_t FirstOfEnd(const SideValues& side, size_t begin, size_t end) {
  while (end > begin && (*side.values)[end - 1] == 0) --end;
  return end;
}

ZeroCounts CountZeros(const TokenPairs& pairs, const SideValues& side) {
  ZeroCounts zeros;
  for (int64_t row = 0; row < pairs.num_rows(); ++row) {
    const size_t begin = pairs.begin_of(row), end = pairs.end_of(row);
    if (begin == end) continue;
    ++zeros.rows;
    for (size_t m = begin; m < end; ++m) {
      zeros.given += std::isfinite((*side.values)[m]);
      zeros.unlikely += IsDeniedZero(side, m, kUnlikely);
      zeros.all += (*side.values)[m] == 0;
    }
    const bool is_zero = (*side.values)[end - 1] == 0;
    zeros.longest =
        std::max(zeros.longest, static_cast<int64_t>(end - FirstOfEnd(side, begin, end)));
    for (size_t m = begin; m < FirstOfEnd(side, begin, end); ++m)
      zeros.elsewhere += (*side.values)[m] == 0;
    zeros.last += is_zero;
    zeros.last_with_other += is_zero && std::isfinite((*side.other)[end - 1]);
    zeros.last_denied += IsDeniedZero(side, end - 1, kNotCertain);
  }
  return zeros;
}

void AppendLastZero(const TokenPairs& pairs, const SideValues& side, const ZeroCounts& zeros,
                    std::vector<Sign>& signs) {
  std::vector<float>& values = *side.values;
  signs.push_back(ShownFault(
      "last_value_zero", side.side,
      absl::StrCat(
          side.name(), " is exactly 0 at the last drawn token of ", Of(zeros.last, zeros.rows),
          " rows",
          zeros.longest > 1 ? absl::StrCat(" (up to ", zeros.longest, " zeros end a row)") : "",
          ", and at ", absl::StrFormat("%.2g", 100 * zeros.rate()), " % of the tokens before",
          zeros.last_denied > 0 ? absl::StrCat("; the other side denies that it was certain in ",
                                               zeros.last_denied, " of them")
                                : "",
          ": an end token that was added, or an end that was cut off and filled in.")));
  if (zeros.last_denied == 0) {
    signs.back().verdict = SignVerdict::kSuspected;  // it may have been certain
    signs.back().accuses = false;
    return;
  }
  for (int64_t row = 0; row < pairs.num_rows(); ++row) {
    const auto first =
        static_cast<std::ptrdiff_t>(FirstOfEnd(side, pairs.begin_of(row), pairs.end_of(row)));
    std::fill(values.begin() + first,
              values.begin() + static_cast<std::ptrdiff_t>(pairs.end_of(row)), kNoValue);
  }
}

// Zeros say "certain". Where the other side denies it, they stand for "no value".
void AppendZeros(const TokenPairs& pairs, const SideValues& side, std::vector<Sign>& signs) {
  std::vector<float>& values = *side.values;
  const ZeroCounts zeros = CountZeros(pairs, side);
  if (zeros.all == 0) return;
  if (zeros.all == zeros.given) {
    signs.push_back(ShownFault(
        "zero_values", side.side,
        absl::StrCat("All ", zeros.all, " values of ", side.name(),
                     " are exactly 0: the engine returned no log-probs, or chose the most "
                     "probable token every time (temperature 0).")));
    std::ranges::fill(values, kNoValue);
    return;
  }
  const bool ends_denied =
      zeros.last_denied >= 3 && zeros.last_denied * 10 >= zeros.last * 3 &&
      10 * zeros.rate() * static_cast<double>(zeros.rows) < static_cast<double>(zeros.last);
  const bool only_at_ends = zeros.last >= 5 && zeros.last * 2 > zeros.rows &&
                            zeros.last_with_other == 0 && zeros.rate() < 0.02;
  if (ends_denied || only_at_ends) return AppendLastZero(pairs, side, zeros, signs);
  if (zeros.unlikely < 3 || !OthersAgree(side)) return;
  const auto denied = [&](size_t m) { return IsDeniedZero(side, m, kUnlikely); };
  signs.push_back(
      ShownFault("zero_values", side.side,
                 absl::StrCat(side.name(), " is exactly 0 (\"certain\") at ",
                              Of(zeros.unlikely, pairs.num_tokens()),
                              " drawn tokens to which the other side gives a probability below 0.1",
                              WhereInRows(pairs, denied),
                              ": a number that stands for \"no value\". All its zeros are left out "
                              "of every number here.")));
  std::ranges::replace(values, 0.0F, kNoValue);
}

// The last drawn token of rows against the others: an end token that was forced, scored after
// another context, or is another token on one side.
void AppendEndToken(const Records& records, const TokenPairs& pairs, std::vector<Sign>& signs) {
  std::vector<double> sizes;
  int64_t rows = 0;
  for (int64_t row = 0; row < pairs.num_rows(); ++row) {
    for (size_t m = pairs.begin_of(row); m + 1 < pairs.end_of(row); ++m) {
      const double size = std::abs(pairs.delta(m));
      if (std::isfinite(size)) sizes.push_back(size);
    }
    rows += pairs.length_of(row) > 0 && std::isfinite(pairs.delta(pairs.end_of(row) - 1));
  }
  if (rows < 5 || sizes.size() < 100) return;
  const auto at = sizes.begin() + static_cast<int64_t>(0.99 * static_cast<double>(sizes.size()));
  std::ranges::nth_element(sizes, at);
  const double bound = std::max(0.5, 2 * *at);
  int64_t far = 0;
  std::map<int32_t, int64_t> ids;
  for (int64_t row = 0; row < pairs.num_rows(); ++row) {
    if (pairs.length_of(row) == 0) continue;
    const size_t m = pairs.end_of(row) - 1;
    if (!(std::abs(pairs.delta(m)) > bound)) continue;
    ++far;
    ++ids[records.token_ids[static_cast<size_t>(pairs.place[m])]];
  }
  // With a chance of 1 % in each row, five rows and a tenth of all are far beyond kTestLevel.
  if (far < 5 || far * 10 < rows) return;
  const auto id = std::ranges::max_element(ids, {}, [](const auto& seen) { return seen.second; });
  signs.push_back(ShownFault(
      "end_token", SignSide::kUnknown,
      absl::StrCat("At the last drawn token of ", Of(far, rows),
                   " rows the two sides differ by more than ", absl::StrFormat("%.3g", bound),
                   " nats, which 1 % of the other tokens do not by half; ", id->second,
                   " of them are token ", id->first,
                   ": an end token that was forced, added, or is scored as another token.")));
}

// Whether rows that say that they stopped end with an end token.
void AppendStopTokens(const Records& records, const TokenPairs& pairs, std::vector<Sign>& signs) {
  const std::vector<int32_t>& ends = records.header.eos_token_ids;
  if (ends.empty()) return;
  int64_t stopped = 0, without = 0, twice = 0, inside = 0, rows = 0;
  const auto is_end = [&](size_t m) {
    return std::ranges::find(ends, records.token_ids[static_cast<size_t>(pairs.place[m])]) !=
           ends.end();
  };
  for (int64_t row = 0; row < pairs.num_rows(); ++row) {
    const size_t begin = pairs.begin_of(row), end = pairs.end_of(row);
    if (begin == end) continue;
    ++rows;
    const RowFacts& facts = records.rows[static_cast<size_t>(row)];
    if (facts.finish_reason == "stop") {
      ++stopped;
      without +=
          !is_end(end - 1) && !(facts.stop_token_kept.has_value() && !*facts.stop_token_kept);
    }
    twice += end - begin >= 2 && is_end(end - 1) && is_end(end - 2);
    inside += facts.finish_reason == "length" && is_end(end - 1);
  }
  const auto append = [&](int64_t count, int64_t all, const char* what) {
    if (count == 0) return;
    signs.push_back(
        ShownFault("stop_tokens", SignSide::kUnknown, absl::StrCat(Of(count, all), what)));
    signs.back().accuses = count >= 3;
  };
  append(without, stopped,
         " rows whose finish_reason is \"stop\" do not end with a token of eos_token_ids: the end "
         "token is not in the "
         "record, or a stop string ended them. stop_token_kept would say which.");
  if (without > 0) {
    signs.back().verdict = SignVerdict::kSuspected;
    signs.back().accuses = false;
  }
  append(twice, rows, " rows end with two end tokens: one was added.");
  append(inside, rows,
         " rows whose finish_reason is \"length\" end with an end token: one was added.");
}

// Values at prompt tokens, which nothing here looks at.
void AppendPromptValues(const Records& records, std::vector<Sign>& signs) {
  for (const Column column : {Column::kBehaviour, Column::kProximal}) {
    if (!records.has(column)) continue;
    const auto values = records.column(column);
    int64_t given = 0, constant = 0;
    float first = kNoValue;
    for (size_t n = 0; n < values.size(); ++n) {
      if (records.drawn[n] != 0 || std::isnan(values[n])) continue;
      if (given == 0) first = values[n];
      ++given;
      constant += values[n] == first;
    }
    if (given == 0) continue;
    signs.push_back(
        {.id = "prompt_values",
         .verdict = SignVerdict::kShown,
         .side = column == Column::kBehaviour ? SignSide::kBehaviour : SignSide::kProximal,
         .statement =
             given == constant && given > 1
                 ? absl::StrFormat("%s is %g at all %d tokens of prompts that have a value: filled "
                                   "in, and not looked at.",
                                   ColumnName(column), first, given)
                 : absl::StrCat(
                       ColumnName(column), " has values at ", given,
                       " tokens of prompts, which were not drawn and are not looked at.")});
  }
}

}  // namespace

std::vector<Sign> ValueSigns(const Records& records, TokenPairs* pairs) {
  std::vector<Sign> signs;
  const SideValues sides[] = {
      {Column::kBehaviour, SignSide::kBehaviour, &pairs->behaviour, &pairs->proximal},
      {Column::kProximal, SignSide::kProximal, &pairs->proximal, &pairs->behaviour}};
  for (const SideValues& side : sides) {
    AppendMissing(records, *pairs, side, signs);
    AppendPositive(*pairs, side, signs);
    AppendLow(
        *pairs, side,
        side.side == SignSide::kBehaviour ? records.header.behaviour : records.header.proximal,
        signs);
  }
  for (const SideValues& side : sides) AppendZeros(*pairs, side, signs);
  AppendEndToken(records, *pairs, signs);
  AppendStopTokens(records, *pairs, signs);
  AppendPromptValues(records, signs);
  return signs;
}

}  // namespace tandem::drift
