// InjectionAlarm: reports injected faults by a gauge on /metrics, and by a warning that names all
// of them at the start and every 100 groups. A healthy server gets no warning. OnEvents: engine
// thread only.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "common/observe/metrics.h"
#include "rollout_server/engine/schedule/group.h"

namespace tandem::rollout {

class InjectionAlarm {
 public:
  // `injected`: DescribeFaults. `warn` gets the active faults on one line, and the number of groups
  // so far.
  using Warn = std::function<void(const std::string& faults, int64_t num_groups)>;
  InjectionAlarm(MetricsRegistry* registry, const std::vector<std::string>& injected,
                 Warn warn = WarnInLog);

  void OnEvents(const std::vector<EngineEvent>& events);

  static constexpr int64_t kGroupsBetween = 100;

 private:
  static void WarnInLog(const std::string& faults, int64_t num_groups);

  const std::string faults_;  // one line; empty: none
  const Warn warn_;
  int64_t num_groups_ = 0;
};

}  // namespace tandem::rollout
