// MetricsLine: the numbers of one train step, in order, as a flat JSON object with nine significant
// digits (docs/run_directory.md) and as (name, number) pairs for TensorBoard and /metrics.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "common/statistics/cluster_bootstrap.h"

namespace tandem::trainer {

// Names and JSON values of an event, as text: use JsonText for strings and JsonNumber for numbers.
using JsonFields = std::vector<std::pair<std::string, std::string>>;
std::string JsonText(const std::string& text);  // quoted and escaped; bad UTF-8 replaced

// Writes an event of the run. Errors: it could not be written.
using EventSink =
    std::function<absl::Status(const std::string& kind, const std::string& message, JsonFields)>;

class MetricsLine {
 public:
  MetricsLine(int64_t step, double time_s);

  void Add(const std::string& name, double value);  // non-finite: null in JSON
  // `name`, and where its bounds are known NAME_low and NAME_high.
  void AddInterval(const std::string& name, const offpolicy::Interval& interval);
  void AddCount(const std::string& name, int64_t value);  // all digits
  void AddArray(const std::string& name, std::span<const int64_t> counts);
  void AddDocument(const std::string& name, const std::string& json);
  void AddObject(const std::string& name, const std::map<int64_t, int64_t>& counts);

  std::string ToJson() const;  // without a newline
  int64_t step() const { return step_; }

  // Numbers only, without step and time.
  const std::vector<std::pair<std::string, double>>& scalars() const { return scalars_; }
  double Get(const std::string& name, double fallback = 0) const;
  offpolicy::Interval GetInterval(const std::string& name) const;  // NaN where not there

 private:
  const int64_t step_;
  std::string body_;
  std::vector<std::pair<std::string, double>> scalars_;
};

}  // namespace tandem::trainer
