#include "rollout_server/service/injection_alarm.h"

#include <utility>
#include <variant>

#include "absl/strings/str_join.h"
#include "common/base/log.h"

namespace tandem::rollout {

void InjectionAlarm::WarnInLog(const std::string& faults, int64_t num_groups) {
  log::Warning(
      "FAULTS ARE INJECTED: these completions and log-probs are wrong on purpose (drift.inject)",
      {{"faults", faults}, {"groups", num_groups}});
}

InjectionAlarm::InjectionAlarm(MetricsRegistry* registry, const std::vector<std::string>& injected,
                               Warn warn)
    : faults_(absl::StrJoin(injected, "; ")), warn_(std::move(warn)) {
  registry
      ->GetGauge("tandem_injected_faults",
                 "faults switched on for calibration: 0 on a healthy server")
      ->Set(static_cast<double>(injected.size()));
  if (!faults_.empty()) warn_(faults_, 0);
}

void InjectionAlarm::OnEvents(const std::vector<EngineEvent>& events) {
  if (faults_.empty()) return;
  for (const EngineEvent& event : events) {
    if (!std::holds_alternative<GroupFinished>(event)) continue;
    if (++num_groups_ % kGroupsBetween == 0) warn_(faults_, num_groups_);
  }
}

}  // namespace tandem::rollout
