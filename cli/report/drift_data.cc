#include "cli/report/drift_data.h"

#include <set>
#include <string>
#include <utility>

#include "absl/strings/match.h"

namespace tandem::report {
namespace {

constexpr char kSplitPrefix[] = "drift/by_";

bool IsInterval(const Json& value) { return value.is_array() && value.size() == 3; }

// The bucket objects of a split in one line, or nothing.
const Json* BucketsOf(const Json& row, const std::string& key) {
  const auto it = row.find(key);
  return it != row.end() && it->is_object() ? &*it : nullptr;
}

Json OverSteps(const std::vector<const Json*>& rows, const std::string& key,
               const std::string& measure) {
  std::set<std::string> labels;
  for (const Json* row : rows) {
    const Json* buckets = BucketsOf(*row, key);
    if (buckets == nullptr) continue;
    for (const auto& [label, bucket] : buckets->items()) labels.insert(label);
  }
  Json series = Json::object();
  for (const std::string& label : labels) {
    Json values = Json::array();
    for (const Json* row : rows) {
      const Json* buckets = BucketsOf(*row, key);
      const bool has = buckets != nullptr && buckets->contains(label) &&
                       (*buckets)[label].is_object() && (*buckets)[label].contains(measure) &&
                       IsInterval((*buckets)[label][measure]);
      values.push_back(has ? (*buckets)[label][measure] : Json(nullptr));
    }
    series[label] = std::move(values);
  }
  return series;
}

}  // namespace

Json BuildDriftData(const std::vector<const Json*>& rows) {
  Json by_lag = Json::object();
  for (const char* measure : {"k3", "mean_abs_delta"}) {
    by_lag[measure] = OverSteps(rows, "drift/by_version_lag", measure);
  }
  Json last = Json::object();
  for (const Json* row : rows) {
    for (const auto& [key, buckets] : row->items()) {
      if (!absl::StartsWith(key, kSplitPrefix) || !buckets.is_object() || buckets.empty()) continue;
      last[key.substr(sizeof(kSplitPrefix) - 1)] = {{"step", (*row)["step"]}, {"buckets", buckets}};
    }
  }
  return {{"by_version_lag", std::move(by_lag)}, {"last", std::move(last)}};
}

}  // namespace tandem::report
