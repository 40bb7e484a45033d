#include "trainer/metrics/metrics_line.h"

#include <algorithm>
#include <limits>

#include "common/base/json.h"
#include "nlohmann/json.hpp"

namespace tandem::trainer {

MetricsLine::MetricsLine(int64_t step, double time_s) : step_(step) {
  body_ = "{\"step\":" + std::to_string(step) + ",\"time_s\":" + JsonNumber(time_s);
}

void MetricsLine::AddDocument(const std::string& name, const std::string& json) {
  body_ += ",\"" + name + "\":" + json;
}

void MetricsLine::Add(const std::string& name, double value) {
  AddDocument(name, JsonNumber(value));
  scalars_.emplace_back(name, value);
}

void MetricsLine::AddInterval(const std::string& name, const offpolicy::Interval& interval) {
  Add(name, interval.value);
  if (!interval.known()) return;
  Add(name + "_low", interval.low);
  Add(name + "_high", interval.high);
}

void MetricsLine::AddCount(const std::string& name, int64_t value) {
  AddDocument(name, std::to_string(value));
  scalars_.emplace_back(name, static_cast<double>(value));
}

void MetricsLine::AddArray(const std::string& name, std::span<const int64_t> counts) {
  AddDocument(name, nlohmann::json(std::vector<int64_t>(counts.begin(), counts.end())).dump());
}

void MetricsLine::AddObject(const std::string& name, const std::map<int64_t, int64_t>& counts) {
  nlohmann::ordered_json object = nlohmann::ordered_json::object();
  for (const auto& [key, count] : counts) object[std::to_string(key)] = count;
  AddDocument(name, object.dump());
}

std::string MetricsLine::ToJson() const { return body_ + "}"; }

double MetricsLine::Get(const std::string& name, double fallback) const {
  const auto found = std::ranges::find(scalars_, name, &std::pair<std::string, double>::first);
  return found == scalars_.end() ? fallback : found->second;
}

offpolicy::Interval MetricsLine::GetInterval(const std::string& name) const {
  constexpr double kAbsent = std::numeric_limits<double>::quiet_NaN();
  return {.value = Get(name, kAbsent),
          .low = Get(name + "_low", kAbsent),
          .high = Get(name + "_high", kAbsent)};
}

std::string JsonText(const std::string& text) {
  return nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

}  // namespace tandem::trainer
