#include "drift_lab/referee/scored_rows.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <span>
#include <utility>

#include "common/base/status_macros.h"

namespace tandem::drift {
namespace {

// Contexts cost as much as drawn tokens: at most so many for each drawn one that is asked for.
constexpr int64_t kContextPerToken = 4;
constexpr int64_t kRoundedTokens = 1200;

std::vector<RefereeRow> ChooseRows(const Records& records, const RefereeOptions& options) {
  std::vector<RefereeRow> rows = RefereeRows(records);
  std::mt19937_64 random(options.seed);
  for (size_t i = rows.size(); i > 1; --i) std::swap(rows[i - 1], rows[random() % i]);
  int64_t drawn = 0, all = 0;
  size_t n = 0;
  for (; n < rows.size() && drawn < options.max_tokens &&
         (n == 0 || all < options.max_tokens * kContextPerToken);
       ++n) {
    drawn += static_cast<int64_t>(rows[n].targets.size());
    all += static_cast<int64_t>(rows[n].ids.size());
  }
  rows.resize(n);
  return rows;
}

// True if neither side needs the bf16 pass: both say the numbers of the fp32 pass.
bool AreSame(const ScoredRows& scored, const Records& records) {
  const auto same = [&](const std::vector<double>& values, const SideClaims& claims) {
    const SamplerSettings settings = ClaimedSettings(claims);
    double sum = 0, count = 0;
    for (size_t i = 0; i < values.size(); ++i) {
      if (std::isnan(values[i])) continue;
      sum += std::abs(values[i] - ScoreToken(scored.logits[i], settings).logprob);
      count += 1;
    }
    return sum <= kSameMeanAbs * count;
  };
  return same(scored.behaviour, records.header.behaviour) &&
         same(scored.proximal, records.header.proximal);
}

}  // namespace

size_t ScoredRows::RowsFor(size_t row, int64_t num_tokens, size_t least_rows) const {
  const size_t first = row;
  int64_t tokens = 0;
  while (row < rows.size() && (tokens < num_tokens || row - first < least_rows)) {
    tokens += static_cast<int64_t>(rows[row++].targets.size());
  }
  return row;
}

size_t ScoredRows::TokensBefore(size_t row) const {
  size_t tokens = 0;
  for (size_t i = 0; i < std::min(row, rows.size()); ++i) tokens += rows[i].targets.size();
  return tokens;
}

absl::StatusOr<ScoredRows> ScoreRows(const RefereeModel& model, const Records& records,
                                     const TokenPairs& pairs, const RefereeOptions& options,
                                     const RefereeProgress& progress) {
  ScoredRows out{.rows = ChooseRows(records, options)};
  out.end_tokens = records.header.eos_token_ids.empty() ? model.config().eos_token_ids
                                                        : records.header.eos_token_ids;
  std::vector<size_t> pair_of(static_cast<size_t>(records.num_tokens()),
                              std::numeric_limits<size_t>::max());
  for (size_t m = 0; m < pairs.place.size(); ++m) {
    pair_of[static_cast<size_t>(pairs.place[m])] = m;
  }
  const double none = std::numeric_limits<double>::quiet_NaN();
  bool any = false;
  for (const RefereeRow& row : out.rows) {
    for (const int64_t target : row.targets) {
      const size_t m = pair_of[static_cast<size_t>(records.begin_of(row.row) + target)];
      const bool known = m < pairs.behaviour.size();
      const double behaviour = known ? static_cast<double>(pairs.behaviour[m]) : none;
      const double proximal = known ? static_cast<double>(pairs.proximal[m]) : none;
      out.behaviour.push_back(std::isfinite(behaviour) ? behaviour : none);
      out.proximal.push_back(std::isfinite(proximal) ? proximal : none);
      any |= std::isfinite(behaviour) || std::isfinite(proximal);
    }
  }
  if (!any) {
    return InvalidArgument(
        records.path,
        ": no drawn token has a context and a log-prob, so that there is nothing "
        "for the referee to judge");
  }
  ForwardOptions forward{.end_tokens = out.end_tokens, .with_seen = true};
  forward.progress = [&](double done) { progress("scoring the tokens in fp32", 0.2 * done); };
  TANDEM_ASSIGN_OR_RETURN(out.logits, RefereeForward(model, out.rows, Variant{}, forward));
  if (AreSame(out, records)) return out;
  // The noise's scale needs no more, and whether a gap goes with it neither.
  const size_t some = out.RowsFor(0, kRoundedTokens, 1);
  forward.progress = [&](double done) {
    progress("scoring the tokens in bf16", 0.2 + 0.15 * done);
  };
  TANDEM_ASSIGN_OR_RETURN(out.bf16, RefereeForward(model, std::span(out.rows).first(some),
                                                   {.precision = Precision::kBf16}, forward));
  return out;
}

}  // namespace tandem::drift
