// The data of the page of `tandem drift why RECORDS --html`.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "drift_lab/pages/referee_report.h"
#include "drift_lab/pages/screening_report.h"
#include "drift_lab/records/records_header.h"

namespace tandem::drift {
namespace {

using nlohmann::ordered_json;

constexpr int64_t kBefore = 12, kAfter = 6;  // tokens shown around a worst token

ordered_json FourDigits(double value) {
  if (!std::isfinite(value)) return nullptr;
  return value == 0 ? ordered_json(0) : ordered_json::parse(absl::StrFormat("%.4g", value));
}

// How many deltas there are in bins of equal width from -limit to limit, beyond which 0.2 % are.
ordered_json DensityJson(const Screening& screening, int64_t num_bins) {
  const TokenPairs& pairs = screening.pairs;
  const double limit = std::max(screening.effect.abs_delta_p999, 1e-9);
  std::vector<int64_t> counts(static_cast<size_t>(2 * num_bins));
  int64_t outside = 0;
  for (size_t m = 0; m < pairs.place.size(); ++m) {
    const double delta = pairs.delta(m);
    if (!std::isfinite(delta)) continue;
    const auto bin = static_cast<int64_t>(
        std::floor((delta + limit) / (2 * limit) * static_cast<double>(2 * num_bins)));
    if (bin < 0 || bin >= 2 * num_bins) {
      ++outside;
    } else {
      ++counts[static_cast<size_t>(bin)];
    }
  }
  return {{"limit", FourDigits(limit)}, {"counts", counts}, {"outside", outside}};
}

ordered_json ScatterJson(const TokenPairs& pairs, int64_t max_points) {
  const int64_t stride =
      std::max<int64_t>(1, pairs.num_tokens() / std::max<int64_t>(1, max_points));
  ordered_json points = ordered_json::array();
  for (int64_t m = 0; m < pairs.num_tokens(); m += stride) {
    const auto at = static_cast<size_t>(m);
    if (!std::isfinite(pairs.delta(at))) continue;
    points.push_back({FourDigits(pairs.behaviour[at]), FourDigits(pairs.delta(at))});
  }
  return {{"every", stride}, {"points", points}};
}

// Mean abs(delta) and mean delta against a number of the token or row, in bins with about equally
// many tokens.
struct CurvePoint {
  float x, delta;
};
ordered_json CurveJson(std::vector<CurvePoint> points, int64_t num_bins) {
  std::ranges::stable_sort(points, {}, &CurvePoint::x);
  ordered_json curve = {{"x", ordered_json::array()},
                        {"tokens", ordered_json::array()},
                        {"mean", ordered_json::array()},
                        {"mean_abs", ordered_json::array()}};
  const size_t least = std::max<size_t>(
      1, (points.size() + static_cast<size_t>(num_bins) - 1) / static_cast<size_t>(num_bins));
  for (size_t begin = 0; begin < points.size();) {
    size_t end = std::min(points.size(), begin + least);
    while (end < points.size() && points[end].x == points[end - 1].x) ++end;
    double x = 0, sum = 0, size = 0, squares = 0;
    for (size_t i = begin; i < end; ++i) {
      x += points[i].x;
      sum += points[i].delta;
      size += std::abs(points[i].delta);
      squares += static_cast<double>(points[i].delta) * points[i].delta;
    }
    const auto count = static_cast<double>(end - begin);
    // Twice the standard error, as if tokens were independent: a guide for the eye.
    const double error =
        2 * std::sqrt(std::max(0.0, squares / count - size / count * size / count) / count);
    curve["x"].push_back(FourDigits(x / count));
    curve["tokens"].push_back(end - begin);
    curve["mean"].push_back(FourDigits(sum / count));
    curve["mean_abs"].push_back({FourDigits(size / count), FourDigits(size / count - error),
                                 FourDigits(size / count + error)});
    begin = end;
  }
  return curve;
}

template <typename X>
ordered_json CurveOver(const TokenPairs& pairs, int64_t num_bins, const X& x_of) {
  std::vector<CurvePoint> points;
  for (int64_t row = 0; row < pairs.num_rows(); ++row) {
    for (size_t m = pairs.begin_of(row); m < pairs.end_of(row); ++m) {
      const double delta = pairs.delta(m);
      const auto x = static_cast<float>(x_of(row, m));
      if (std::isfinite(delta) && std::isfinite(x))
        points.push_back({x, static_cast<float>(delta)});
    }
  }
  return CurveJson(std::move(points), num_bins);
}

// Over the entropy of the distribution that a side names, the behaviour's where both do.
void AddEntropyCurve(const Records& records, const TokenPairs& pairs, int64_t num_bins,
                     ordered_json& data) {
  for (const Column column : {Column::kBehaviourEntropy, Column::kProximalEntropy}) {
    const std::vector<float> entropy = AtDrawnTokens(records, pairs, column);
    if (std::ranges::none_of(entropy, [](float value) { return std::isfinite(value); })) continue;
    data["entropy_of"] = column == Column::kBehaviourEntropy ? "behaviour" : "proximal";
    data["by_entropy"] = CurveOver(pairs, num_bins, [&](int64_t, size_t m) { return entropy[m]; });
    return;
  }
}

// The text of tokens [begin, end), or their ids where there is no tokenizer.
std::string TextOf(const Records& records, const TextOfIds& text_of, int64_t begin, int64_t end) {
  if (begin >= end) return "";
  const auto ids = std::span(records.token_ids)
                       .subspan(static_cast<size_t>(begin), static_cast<size_t>(end - begin));
  std::string text = text_of ? text_of(ids) : "";
  if (!text.empty()) return text;
  for (const int32_t id : ids) absl::StrAppend(&text, "<", id, ">");
  return text;
}

ordered_json WorstOfRecords(const Records& records, const TokenPairs& pairs,
                            const TextOfIds& text_of, int64_t num_worst) {
  struct Place {
    double size;
    int64_t row, m;
  };
  std::vector<Place> places;
  for (int64_t row = 0; row < pairs.num_rows(); ++row) {
    for (size_t m = pairs.begin_of(row); m < pairs.end_of(row); ++m) {
      const double size = std::abs(pairs.delta(m));
      if (size > 0 && std::isfinite(size)) places.push_back({size, row, static_cast<int64_t>(m)});
    }
  }
  const auto count = std::min<int64_t>(num_worst, std::ssize(places));
  std::ranges::partial_sort(places, places.begin() + count, std::greater<>(), &Place::size);
  ordered_json worst = ordered_json::array();
  for (const Place& place : std::span(places).first(static_cast<size_t>(count))) {
    const auto m = static_cast<size_t>(place.m);
    const int64_t here = pairs.place[m];
    const int64_t begin = std::max(records.begin_of(place.row), here - kBefore);
    const int64_t end = std::min(records.end_of(place.row), here + 1 + kAfter);
    worst.push_back({{"row", NameOfRow(records, place.row)},
                     {"position", place.m - static_cast<int64_t>(pairs.begin_of(place.row))},
                     {"id", records.token_ids[static_cast<size_t>(here)]},
                     {"before", TextOf(records, text_of, begin, here)},
                     {"token", TextOf(records, text_of, here, here + 1)},
                     {"after", TextOf(records, text_of, here + 1, end)},
                     {"behaviour", FourDigits(pairs.behaviour[m])},
                     {"proximal", FourDigits(pairs.proximal[m])},
                     {"delta", FourDigits(pairs.delta(m))}});
  }
  return worst;
}

}  // namespace

std::string RecordsPageData(const Records& records, const Screening& screening,
                            const RefereeReport* referee, const TextOfIds& text_of,
                            const RecordsPageLimits& limits) {
  const TokenPairs& pairs = screening.pairs;
  ordered_json data = ordered_json::parse(ScreeningJson(screening));
  if (referee != nullptr) data["referee"] = RefereeJson(*referee);
  data["header"] = ordered_json::parse(HeaderJson(records.header));
  if (screening.effect.num_tokens > 0) {
    data["density"] = DensityJson(screening, limits.num_bins);
    data["scatter"] = ScatterJson(pairs, limits.max_points);
    data["by_logprob"] =
        CurveOver(pairs, limits.num_bins, [&](int64_t, size_t m) { return pairs.behaviour[m]; });
    data["by_position"] = CurveOver(pairs, limits.num_bins,
                                    [&](int64_t row, size_t m) { return m - pairs.begin_of(row); });
    data["by_length"] = CurveOver(pairs, limits.num_bins,
                                  [&](int64_t row, size_t) { return pairs.length_of(row); });
    AddEntropyCurve(records, pairs, limits.num_bins, data);
    const bool has_steps =
        std::ranges::any_of(records.rows, [](const RowFacts& row) { return row.step.has_value(); });
    if (has_steps) {
      data["by_step"] = CurveOver(pairs, limits.num_bins, [&](int64_t row, size_t) {
        return static_cast<double>(records.rows[static_cast<size_t>(row)].step.value_or(-1));
      });
    }
    data["worst"] = WorstOfRecords(records, pairs, text_of, limits.num_worst);
  }
  return data.dump(-1, ' ', /*ensure_ascii=*/true, ordered_json::error_handler_t::replace);
}

}  // namespace tandem::drift
