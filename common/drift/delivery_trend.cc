#include "common/drift/delivery_trend.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <numeric>

namespace tandem::offpolicy {
namespace {

// Two columns of the regression that differ by less than this share of their squares cannot be
// separated.
constexpr double kCollinear = 1e-6;

// One number for each push, in each of the two columns.
struct Columns {
  std::vector<double> distance, push;
};

double Dot(const std::vector<double>& a, const std::vector<double>& b) {
  return std::inner_product(a.begin(), a.end(), b.begin(), 0.0);
}

std::vector<double> Centred(std::vector<double> values, double unit) {
  double mean = 0;
  for (double& v : values) {
    v = unit > 0 ? v / unit : 0;
    mean += v / static_cast<double>(values.size());
  }
  for (double& v : values) v -= mean;
  return values;
}

// Centred squared distances, in units of the last push's, so that a slope is a contribution to the
// last push's square.
Columns MakeColumns(std::span<const ProbedPush> pushes) {
  std::vector<double> distance, push;
  for (const ProbedPush& p : pushes) {
    distance.push_back(p.distance * p.distance);
    push.push_back(p.push_distance * p.push_distance);
  }
  const double distance_unit = distance.back(), push_unit = push.back();
  return {Centred(std::move(distance), distance_unit), Centred(std::move(push), push_unit)};
}

// Ordinary least squares with an intercept: centring the columns removes the intercept, and the 2 x
// 2 normal equations are solved in closed form. The solution is kept as weights on the observations
// and not as numbers: the mean square of a resample is a weighted sum over its completions, so a
// bootstrap replicate of a slope is such a sum as well, and the regression is solved once instead
// of once per replicate.
//
// A slope is linear in the observed squares: element i of a column is the weight of push i. A
// column is empty if its slope cannot be determined.
Columns LeastSquares(const Columns& x) {
  const double dd = Dot(x.distance, x.distance), pp = Dot(x.push, x.push),
               dp = Dot(x.distance, x.push);
  Columns rows;
  if (dd <= 0) return rows;
  const double n = static_cast<double>(x.distance.size());
  const auto row = [&](double distance_factor, double push_factor) {
    std::vector<double> weights;
    for (size_t i = 0; i < x.distance.size(); ++i) {
      weights.push_back(distance_factor * x.distance[i] + push_factor * x.push[i]);
    }
    return weights;
  };
  if (pp < kCollinear * n) {  // all pushes have one size, which the intercept absorbs
    rows.distance = row(1 / dd, 0);
    return rows;
  }
  const double determinant = dd * pp - dp * dp;
  if (determinant < kCollinear * dd * pp) return rows;
  rows.distance = row(pp / determinant, -dp / determinant);
  rows.push = row(-dp / determinant, dd / determinant);
  return rows;
}

double Weighted(std::span<const ProbedPush> pushes, const std::vector<double>& row,
                size_t completion) {
  double sum = 0;
  for (size_t i = 0; i < row.size(); ++i) sum += row[i] * pushes[i].squares[completion];
  return sum;
}

bool IsFinite(const ProbedPush& push) {
  return std::isfinite(push.distance) && std::isfinite(push.push_distance) &&
         std::ranges::all_of(push.squares, [](double square) { return std::isfinite(square); });
}

}  // namespace

DeliveryTrend FitDeliveryTrend(std::span<const ProbedPush> all, std::span<const double> num_tokens,
                               const BootstrapOptions& options) {
  std::vector<ProbedPush> pushes;
  std::ranges::copy_if(all, std::back_inserter(pushes), IsFinite);
  DeliveryTrend trend;
  trend.num_pushes = static_cast<int64_t>(pushes.size());
  trend.undelivered.value = trend.late.value = std::numeric_limits<double>::quiet_NaN();
  if (pushes.empty()) return trend;
  Columns rows;
  if (trend.num_pushes >= kLeastPushes) rows = LeastSquares(MakeColumns(pushes));
  const auto nearest = std::ranges::min_element(pushes, {}, &ProbedPush::distance);

  enum Sum : size_t { kTokens, kLast, kNearest, kDistance, kPush, kNumSums };
  ClusterSums clusters{.num_sums = kNumSums};
  for (size_t s = 0; s < num_tokens.size(); ++s) {
    clusters.Add(std::array{num_tokens[s], pushes.back().squares[s], nearest->squares[s],
                            Weighted(pushes, rows.distance, s), Weighted(pushes, rows.push, s)});
  }
  std::vector<Statistic> statistics;
  for (const size_t sum : {kLast, kNearest, kDistance, kPush}) {
    statistics.push_back(RatioOfSums(sum, kTokens));
  }
  const std::vector<Interval> intervals = BootstrapIntervals(clusters, statistics, options);
  trend.square = intervals[0];
  trend.floor = intervals[1].value;
  if (!rows.distance.empty()) trend.undelivered = intervals[2];
  if (!rows.push.empty()) trend.late = intervals[3];
  return trend;
}

}  // namespace tandem::offpolicy
