#include "cli/report/overoptimisation_data.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <string>
#include <vector>

#include "trainer/preferences/overoptimisation_fit.h"

namespace tandem::report {
namespace {

using trainer::OveroptimisationFit;
using trainer::OveroptimisationLaw;

constexpr int kCurvePoints = 60;

struct Point {
  int64_t step = 0;
  double kl = 0;  // nats of a completion
  double proxy = 0, gold = 0;
};

std::optional<double> Finite(const Json& row, const char* key) {
  const auto it = row.find(key);
  if (it == row.end() || !it->is_number()) return std::nullopt;
  const auto value = it->get<double>();
  return std::isfinite(value) ? std::optional(value) : std::nullopt;
}

std::vector<Point> PointsOf(const std::map<int64_t, Json>& rows) {
  std::vector<Point> points;
  for (const auto& [step, row] : rows) {
    const auto kl = Finite(row, "kl_reference/k3"), length = Finite(row, "length/mean");
    const auto proxy = Finite(row, "reward/mean"), gold = Finite(row, "reward/gold");
    if (!kl || !length || !proxy || !gold) continue;
    points.push_back({step, std::max(0.0, *kl) * *length, *proxy, *gold});
  }
  return points;
}

Json LawJson(OveroptimisationLaw law, const OveroptimisationFit& fit, double farthest,
             double start) {
  Json curve = Json::array();
  for (int i = 0; i <= kCurvePoints; ++i) {
    const double d = farthest * i / kCurvePoints;
    curve.push_back(
        {{"d", d}, {"reward", start + trainer::GoldReward(law, fit.alpha, fit.beta, d)}});
  }
  const bool has_peak = std::isfinite(fit.peak_distance);
  return {{"alpha", fit.alpha},
          {"beta", fit.beta},
          {"alpha_error", fit.alpha_error},
          {"beta_error", fit.beta_error},
          {"residual_squares", fit.residual_squares},
          {"peak_distance", has_peak ? Json(fit.peak_distance) : Json(nullptr)},
          {"curve", std::move(curve)}};
}

Json FitJson(const std::vector<Point>& points, double Point::*reward) {
  const double start = points[0].*reward;
  std::vector<double> kls, rewards;
  for (const Point& point : points) {
    kls.push_back(point.kl);
    rewards.push_back(point.*reward - start);
  }
  const auto fits = trainer::CompareOveroptimisation(kls, rewards);
  if (!fits.ok()) return {{"error", std::string(fits.status().message())}};
  const double farthest = std::sqrt(*std::ranges::max_element(kls));
  const bool is_best_of_n = fits->better == OveroptimisationLaw::kBestOfN;
  return {{"better", is_best_of_n ? "best_of_n" : "reinforcement"},
          {"laws",
           {{"best_of_n", LawJson(OveroptimisationLaw::kBestOfN, fits->best_of_n, farthest, start)},
            {"reinforcement",
             LawJson(OveroptimisationLaw::kReinforcement, fits->reinforcement, farthest, start)}}}};
}

}  // namespace

Json BuildOveroptimisationData(const std::map<int64_t, Json>& rows) {
  const std::vector<Point> points = PointsOf(rows);
  if (points.empty()) return nullptr;
  Json shown = Json::array();
  for (const Point& point : points) {
    shown.push_back({{"step", point.step},
                     {"d", std::sqrt(point.kl)},
                     {"proxy", point.proxy},
                     {"gold", point.gold}});
  }
  return {{"start", {{"proxy", points[0].proxy}, {"gold", points[0].gold}}},
          {"points", std::move(shown)},
          {"proxy", FitJson(points, &Point::proxy)},
          {"gold", FitJson(points, &Point::gold)}};
}

}  // namespace tandem::report
