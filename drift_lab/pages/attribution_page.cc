#include "drift_lab/pages/attribution_report.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <vector>

#include "absl/strings/str_format.h"
#include "common/statistics/cluster_bootstrap.h"

namespace tandem::drift {
namespace {

using nlohmann::ordered_json;
using offpolicy::Capture;
using offpolicy::Interval;

constexpr int64_t kContextBefore = 12;  // tokens shown around a worst token
constexpr int64_t kContextAfter = 6;

// Four significant digits, because a heat map shows no more and a page has many numbers.
ordered_json Short(double value) {
  if (!std::isfinite(value)) return nullptr;
  return value == 0 ? ordered_json(0) : ordered_json::parse(absl::StrFormat("%.4g", value));
}

// What the page shows of a token.
class PageTokens {
 public:
  explicit PageTokens(const Attribution& attribution)
      : attribution_(attribution), capture_(attribution.capture), parts_(attribution.token_parts) {}

  int64_t begin(int64_t completion) const { return capture_.begin_of(completion); }
  int64_t end(int64_t completion) const { return capture_.begin_of(completion + 1); }
  bool masked(int64_t completion) const { return At(capture_.masked, completion) != 0; }

  double behaviour(int64_t t) const { return At(attribution_.ablation.record, t); }
  double proximal(int64_t t) const { return At(attribution_.ablation.proximal, t); }
  double delta(int64_t t) const { return proximal(t) - behaviour(t); }

  size_t num_parts() const { return parts_.parts.size(); }
  std::string name(size_t part) const { return std::string(PartName(parts_.parts[part])); }
  double part(size_t part, int64_t t) const { return At(parts_.values[part], t); }
  // For a factor, its effect with the other factors as in the trainer (PartShare::mean_abs).
  double alone(size_t part, int64_t t) const {
    const bool factor =
        part >= parts_.first_factor && part < parts_.first_factor + parts_.num_factors;
    return factor ? At(parts_.cells[size_t{1} << (part - parts_.first_factor)], t)
                  : this->part(part, t);
  }
  bool is_whole(int64_t t) const {
    bool whole = std::isfinite(delta(t));
    for (size_t i = 0; i < num_parts(); ++i) whole &= std::isfinite(part(i, t));
    return whole;
  }
  bool is_zero(size_t part) const {
    return std::ranges::all_of(parts_.values[part], [](double x) { return !(std::abs(x) > 0); });
  }

 private:
  template <typename T>
  static T At(const std::vector<T>& values, int64_t place) {
    return values[static_cast<size_t>(place)];
  }

  const Attribution& attribution_;
  const Capture& capture_;
  const TokenParts& parts_;
};

ordered_json AboutJson(const Capture& capture) {
  const offpolicy::CaptureManifest& m = capture.manifest;
  ordered_json servers = ordered_json::array();
  for (const offpolicy::CapturedServer& server : m.servers) {
    servers.push_back({{"address", server.address},
                       {"build", server.build},
                       {"dtype", server.dtype},
                       {"numerics", server.numerics},
                       {"instruction_set", server.instruction_set}});
  }
  return {{"run_id", m.run_id},
          {"source", m.source},
          {"created_at", m.created_at},
          {"tandem_version", m.tandem_version},
          {"model", m.model_path},
          {"model_type", m.model_type},
          {"proximal_version", m.proximal_version},
          {"temperature", Short(m.sampling.temperature)},
          {"max_new_tokens", m.sampling.max_new_tokens},
          {"servers", servers},
          {"trainer",
           {{"dtype", m.trainer.dtype},
            {"numerics", m.trainer.numerics},
            {"instruction_set", m.trainer.instruction_set},
            {"library", m.trainer.library}}}};
}

// Where the sums of a completion are in its row: for each bin of positions the number of tokens,
// delta, abs(delta), and both for every part.
struct PositionLayout {
  int64_t width = 1;  // positions in a bin
  int64_t num_bins = 0;
  size_t num_parts = 0;

  size_t stride() const { return 3 + 2 * num_parts; }
  size_t at(int64_t bin, size_t what) const { return static_cast<size_t>(bin) * stride() + what; }
};

PositionLayout LayOutPositions(const PageTokens& tokens, const Capture& capture, int64_t max_bins) {
  int64_t longest = 0;
  for (int64_t s = 0; s < capture.num_completions(); ++s) {
    if (!tokens.masked(s)) longest = std::max(longest, tokens.end(s) - tokens.begin(s));
  }
  PositionLayout sums{.num_parts = tokens.num_parts()};
  sums.width = std::max<int64_t>(1, (longest + max_bins - 1) / max_bins);
  sums.num_bins = (longest + sums.width - 1) / sums.width;
  return sums;
}

// One row for each completion with a token that every step scored.
offpolicy::ClusterSums SumPositions(const PageTokens& tokens, const Capture& capture,
                                    const PositionLayout& layout) {
  offpolicy::ClusterSums clusters{.num_sums = static_cast<int64_t>(layout.at(layout.num_bins, 0))};
  for (int64_t s = 0; s < capture.num_completions(); ++s) {
    if (tokens.masked(s)) continue;
    std::vector<double> row(layout.at(layout.num_bins, 0));
    bool any = false;
    for (int64_t t = tokens.begin(s); t < tokens.end(s); ++t) {
      if (!tokens.is_whole(t)) continue;
      any = true;
      const int64_t bin = (t - tokens.begin(s)) / layout.width;
      row[layout.at(bin, 0)] += 1;
      row[layout.at(bin, 1)] += tokens.delta(t);
      row[layout.at(bin, 2)] += std::abs(tokens.delta(t));
      for (size_t i = 0; i < layout.num_parts; ++i) {
        row[layout.at(bin, 3 + 2 * i)] += tokens.part(i, t);
        row[layout.at(bin, 4 + 2 * i)] += std::abs(tokens.alone(i, t));
      }
    }
    if (any) clusters.values.insert(clusters.values.end(), row.begin(), row.end());
  }
  return clusters;
}

ordered_json Triple(const Interval& i) {
  return ordered_json::array({Short(i.value), Short(i.low), Short(i.high)});
}

ordered_json PositionsJson(const PageTokens& tokens, const Capture& capture, int64_t max_bins) {
  const PositionLayout layout = LayOutPositions(tokens, capture, max_bins);
  const offpolicy::ClusterSums clusters = SumPositions(tokens, capture, layout);
  std::vector<double> total = clusters.Total();
  total.resize(layout.at(layout.num_bins, 0));
  std::vector<offpolicy::Statistic> means;
  for (int64_t bin = 0; bin < layout.num_bins; ++bin) {
    for (const size_t what : {size_t{1}, size_t{2}}) {
      const size_t sum = layout.at(bin, what), count = layout.at(bin, 0);
      means.push_back([=](std::span<const double> sums) { return sums[sum] / sums[count]; });
    }
  }
  const std::vector<Interval> intervals = offpolicy::BootstrapIntervals(clusters, means);
  ordered_json json = {{"from", ordered_json::array()},     {"to", ordered_json::array()},
                       {"tokens", ordered_json::array()},   {"mean", ordered_json::array()},
                       {"mean_abs", ordered_json::array()}, {"parts", ordered_json::object()}};
  for (int64_t bin = 0; bin < layout.num_bins; ++bin) {
    const double count = total[layout.at(bin, 0)];
    json["from"].push_back(bin * layout.width);
    json["to"].push_back((bin + 1) * layout.width - 1);
    json["tokens"].push_back(static_cast<int64_t>(count));
    json["mean"].push_back(Triple(intervals[static_cast<size_t>(2 * bin)]));
    json["mean_abs"].push_back(Triple(intervals[static_cast<size_t>(2 * bin) + 1]));
    for (size_t i = 0; i < layout.num_parts; ++i) {
      ordered_json& part = json["parts"][tokens.name(i)];
      part["mean"].push_back(Short(total[layout.at(bin, 3 + 2 * i)] / count));
      part["mean_abs"].push_back(Short(total[layout.at(bin, 4 + 2 * i)] / count));
    }
  }
  return json;
}

// The texts of ids, without repetition.
class Texts {
 public:
  explicit Texts(const DecodeIds& decode) : decode_(decode) {}

  size_t Place(int32_t id) {
    const auto [found, is_first] = places_.try_emplace(id, texts_.size());
    if (is_first) texts_.push_back(decode_(std::span(&id, 1)));
    return found->second;
  }
  const ordered_json& texts() const { return texts_; }

 private:
  const DecodeIds& decode_;
  std::map<int32_t, size_t> places_;
  ordered_json texts_ = ordered_json::array();
};

ordered_json RowJson(const PageTokens& tokens, const Capture& capture, int64_t s, int64_t end,
                     const std::vector<size_t>& parts, Texts& texts) {
  const auto place = static_cast<size_t>(s);
  ordered_json row = {
      {"completion", s},
      {"group", capture.group_id[static_cast<size_t>(capture.group[place])]},
      {"index", capture.completion_index[place]},
      {"masked", tokens.masked(s)},
      {"advantage", Short(capture.advantages[static_cast<size_t>(tokens.begin(s))])},
      {"reward", Short(capture.reward[place])},
      {"tokens", ordered_json::array()},
      {"versions", ordered_json::array()},
      {"behaviour", ordered_json::array()},
      {"delta", ordered_json::array()},
      {"parts", ordered_json::object()}};
  for (const size_t i : parts) row["parts"][tokens.name(i)] = ordered_json::array();
  for (int64_t t = tokens.begin(s); t < end; ++t) {
    row["tokens"].push_back(texts.Place(capture.token_ids[static_cast<size_t>(t)]));
    row["versions"].push_back(capture.weight_version[static_cast<size_t>(t)]);
    row["behaviour"].push_back(Short(tokens.behaviour(t)));
    row["delta"].push_back(Short(tokens.delta(t)));
    for (const size_t i : parts) row["parts"][tokens.name(i)].push_back(Short(tokens.part(i, t)));
  }
  return row;
}

ordered_json MapJson(const PageTokens& tokens, const Capture& capture, const DecodeIds& decode,
                     const PageLimits& limits) {
  std::vector<size_t> parts;
  ordered_json names = ordered_json::array();
  for (size_t i = 0; i < tokens.num_parts(); ++i) {
    if (tokens.is_zero(i)) continue;
    parts.push_back(i);
    names.push_back(tokens.name(i));
  }
  const auto end_of = [&](int64_t s) {
    return std::min(tokens.end(s), tokens.begin(s) + limits.max_columns);
  };
  int64_t cells = 0, columns = 0, cut = 0;
  for (int64_t s = 0; s < capture.num_completions(); ++s) {
    const int64_t shown = end_of(s) - tokens.begin(s);
    cells += shown;
    columns = std::max(columns, shown);
    cut += tokens.end(s) - end_of(s);
  }
  const int64_t every = std::max<int64_t>(1, (cells + limits.max_cells - 1) / limits.max_cells);
  Texts texts(decode);
  ordered_json rows = ordered_json::array();
  for (int64_t s = 0; s < capture.num_completions(); s += every) {
    rows.push_back(RowJson(tokens, capture, s, end_of(s), parts, texts));
  }
  return {{"every", every}, {"columns", columns},     {"cut_tokens", cut},
          {"parts", names}, {"texts", texts.texts()}, {"rows", rows}};
}

// The ids of prompt and completion, and where the completion begins among them.
struct Context {
  std::vector<int32_t> ids;
  int64_t first = 0;
};
Context ContextOf(const Capture& capture, int64_t s) {
  const auto prompt = capture.prompt_of(s), completion = capture.ids(s);
  Context context{.ids{prompt.begin(), prompt.end()}, .first = std::ssize(prompt)};
  context.ids.insert(context.ids.end(), completion.begin(), completion.end());
  return context;
}

ordered_json WorstJson(const PageTokens& tokens, const Capture& capture, int64_t s, int64_t t,
                       const DecodeIds& decode) {
  const auto place = static_cast<size_t>(s);
  const Context context = ContextOf(capture, s);
  const int64_t here = context.first + t - tokens.begin(s);
  const auto text = [&](int64_t begin, int64_t end) {
    begin = std::max<int64_t>(begin, 0);
    end = std::min(end, std::ssize(context.ids));
    return decode(std::span(context.ids)
                      .subspan(static_cast<size_t>(begin), static_cast<size_t>(end - begin)));
  };
  ordered_json parts = ordered_json::object();
  for (size_t i = 0; i < tokens.num_parts(); ++i) {
    if (!tokens.is_zero(i)) parts[tokens.name(i)] = Short(tokens.part(i, t));
  }
  return {{"completion", s},
          {"group", capture.group_id[static_cast<size_t>(capture.group[place])]},
          {"index", capture.completion_index[place]},
          {"position", t - tokens.begin(s)},
          {"version", capture.weight_version[static_cast<size_t>(t)]},
          {"before", text(here - kContextBefore, here)},
          {"token", text(here, here + 1)},
          {"after", text(here + 1, here + 1 + kContextAfter)},
          {"behaviour", Short(tokens.behaviour(t))},
          {"proximal", Short(tokens.proximal(t))},
          {"delta", Short(tokens.delta(t))},
          {"parts", parts}};
}

ordered_json WorstTokensJson(const PageTokens& tokens, const Capture& capture,
                             const DecodeIds& decode, int64_t num_worst) {
  struct Place {
    double size;
    int64_t completion, token;
  };
  std::vector<Place> places;
  for (int64_t s = 0; s < capture.num_completions(); ++s) {
    if (tokens.masked(s)) continue;
    for (int64_t t = tokens.begin(s); t < tokens.end(s); ++t) {
      const double size = std::abs(tokens.delta(t));
      if (size > 0 && std::isfinite(size)) places.push_back({size, s, t});
    }
  }
  std::ranges::stable_sort(places, std::greater<>(), &Place::size);
  ordered_json worst = ordered_json::array();
  for (const Place& place : places) {
    if (std::ssize(worst) == num_worst) break;
    worst.push_back(WorstJson(tokens, capture, place.completion, place.token, decode));
  }
  return worst;
}

}  // namespace

std::string AttributionPageData(const Attribution& attribution, const DecodeIds& decode,
                                const PageLimits& limits) {
  const Capture& capture = attribution.capture;
  ordered_json data = ordered_json::parse(AttributionJson(attribution));
  data["about"] = AboutJson(capture);
  if (attribution.findings.empty()) {
    const PageTokens tokens(attribution);
    data["positions"] = PositionsJson(tokens, capture, limits.max_bins);
    data["map"] = MapJson(tokens, capture, decode, limits);
    data["worst"] = WorstTokensJson(tokens, capture, decode, limits.num_worst);
  }
  return data.dump(-1, ' ', /*ensure_ascii=*/true, ordered_json::error_handler_t::replace);
}

}  // namespace tandem::drift
