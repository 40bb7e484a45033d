// Computes our statistics for JSON lines on stdin, for statistics_parity_test.py.
//   {"kind": "bootstrap", "clusters": [[a, b], ...], "replicates": n}   interval of sum a / sum b
//   {"kind": "pareto", "weights": [...]}                                tail index
//   {"kind": "sketch", "values": [...], "q": [...]}                     quantiles
//   {"kind": "peers", "peer": "verl", "settings": "correction.kind=off", "one_update": true, ...}
//                                                                       under other systems' names
//   {"kind": "drift", "sequence": [...], "behaviour": [...], ...}       every drift number
#include <iostream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "common/drift/drift_metrics.h"
#include "common/drift/peer_metrics.h"
#include "common/offpolicy/correction_method.h"
#include "common/statistics/cluster_bootstrap.h"
#include "common/statistics/distributions.h"
#include "common/statistics/quantile_sketch.h"

namespace tandem::offpolicy {
namespace {

using nlohmann::json;

json Bootstrap(const json& in) {
  ClusterSums clusters{.num_sums = 2};
  for (const json& row : in["clusters"]) {
    clusters.values.insert(clusters.values.end(), {row[0].get<double>(), row[1].get<double>()});
  }
  const std::vector<Statistic> ratio = {
      [](std::span<const double> sums) { return sums[0] / sums[1]; }};
  const Interval interval =
      BootstrapIntervals(clusters, ratio, {.replicates = in["replicates"].get<int64_t>()})[0];
  return {{"value", interval.value},
          {"low", interval.low},
          {"high", interval.high},
          {"standard_error", interval.standard_error}};
}

json Sketch(const json& in) {
  QuantileSketch sketch;
  for (const double value : in["values"]) sketch.Add(value);
  json out = json::array();
  for (const double q : in["q"]) out.push_back(sketch.Quantile(q));
  return out;
}

// The columns of a record that a request has.
struct Columns {
  std::vector<float> behaviour, proximal, entropies, moments, advantages;
  std::vector<int32_t> sequence, group, length, zeros;
  std::vector<uint8_t> mask;

  explicit Columns(const json& in) {
    const auto floats = [&](const char* name) { return in[name].get<std::vector<float>>(); };
    const auto integers = [&](const char* name) { return in[name].get<std::vector<int32_t>>(); };
    behaviour = floats("behaviour");
    proximal = floats("proximal");
    entropies = floats("entropies");
    moments = floats("second_moments");
    advantages = floats("advantages");
    sequence = integers("sequence");
    group = integers("group");
    length = integers("length");
    zeros.resize(behaviour.size());
    mask.assign(behaviour.size(), 1);
  }

  TokenRecord record() const {
    return {behaviour, proximal, entropies, moments, advantages, sequence,
            zeros,     zeros,    mask,      group,   length};
  }
};

json Drift(const json& in) {
  const Columns columns(in);
  const DriftMetrics metrics = ComputeDriftMetrics(columns.record());
  json out = json::object();
  for (const DriftNumber& number : metrics.numbers) {
    out[std::string(number.name)] = number.interval.value;
  }
  return out;
}

json Peers(const json& in) {
  const Columns columns(in);
  const PeerSettings settings = {ParseMethod(in["settings"].get<std::string>()).value().correction,
                                 in["one_update"].get<bool>()};
  json out = json::object();
  for (const auto& [name, value] :
       PeerMetrics(ParsePeer(in["peer"].get<std::string>()).value(), columns.record(), settings)) {
    out[name] = value;
  }
  return out;
}

}  // namespace
}  // namespace tandem::offpolicy

int main() {
  using nlohmann::json;
  using namespace tandem::offpolicy;
  for (std::string line; std::getline(std::cin, line);) {
    const json in = json::parse(line);
    const std::string kind = in["kind"];
    json out;
    if (kind == "bootstrap") out = Bootstrap(in);
    if (kind == "drift") out = Drift(in);
    if (kind == "peers") out = Peers(in);
    if (kind == "sketch") out = Sketch(in);
    if (kind == "pareto") {
      auto weights = in["weights"].get<std::vector<double>>();
      out = ParetoTailIndex(weights);
    }
    std::cout << out.dump() << std::endl;
  }
}
