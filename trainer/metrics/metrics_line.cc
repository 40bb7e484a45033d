#include "trainer/metrics/metrics_line.h"

#include <limits>

#include "common/base/json.h"
#include "nlohmann/json.hpp"

namespace tandem::trainer {

MetricsLine::MetricsLine(int64_t step, double time_s) : step_(step) {
  body_ = "{\"step\":" + std::to_string(step) + ",\"time_s\":" + JsonNumber(time_s);
}

void MetricsLine::Append(const std::string& name, const std::string& json) {
  body_ += ",\"" + name + "\":" + json;
}

void MetricsLine::Add(const std::string& name, double value) {
  Append(name, JsonNumber(value));
  scalars_.emplace_back(name, value);
}

void MetricsLine::AddInterval(const std::string& name, const offpolicy::Interval& interval) {
  Add(name, interval.value);
  if (!interval.known()) return;
  Add(name + "_low", interval.low);
  Add(name + "_high", interval.high);
}

void MetricsLine::AddCount(const std::string& name, int64_t value) {
  Append(name, std::to_string(value));
  scalars_.emplace_back(name, static_cast<double>(value));
}

void MetricsLine::AddArray(const std::string& name, std::span<const int64_t> counts) {
  std::string json = "[";
  for (const int64_t count : counts) {
    if (json.size() > 1) json += ",";
    json += std::to_string(count);
  }
  Append(name, json + "]");
}

void MetricsLine::AddDocument(const std::string& name, const std::string& json) {
  Append(name, json);
}

void MetricsLine::AddObject(const std::string& name, const std::map<int64_t, int64_t>& counts) {
  std::string json = "{";
  for (const auto& [key, count] : counts) {
    if (json.size() > 1) json += ",";
    json += "\"" + std::to_string(key) + "\":" + std::to_string(count);
  }
  Append(name, json + "}");
}

std::string MetricsLine::ToJson() const { return body_ + "}"; }

double MetricsLine::Get(const std::string& name, double fallback) const {
  for (const auto& [key, value] : scalars_) {
    if (key == name) return value;
  }
  return fallback;
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
