#include "rollout_server/service/injection_alarm.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace tandem::rollout {
namespace {

using ::testing::ElementsAre;

TEST(InjectionAlarm, WarnsAtTheStartAndEveryHundredGroups) {
  MetricsRegistry registry;
  std::vector<int64_t> warned;
  InjectionAlarm alarm(&registry, {"temperature 0.9 (record drawn)", "retokenise"},
                       [&](const std::string& faults, int64_t num_groups) {
                         EXPECT_EQ(faults, "temperature 0.9 (record drawn); retokenise");
                         warned.push_back(num_groups);
                       });
  EXPECT_THAT(warned, ElementsAre(0));
  for (int i = 0; i < 125; ++i) {
    alarm.OnEvents({GroupStarted{}, GroupFinished{}, CompletionFinished{}, GroupFinished{}});
  }
  EXPECT_THAT(warned, ElementsAre(0, 100, 200));
  EXPECT_EQ(registry.GetGauge("tandem_injected_faults", "")->Value(), 2);
}

TEST(InjectionAlarm, IsSilentOnAHealthyServer) {
  MetricsRegistry registry;
  int warnings = 0;
  InjectionAlarm alarm(&registry, {}, [&](const std::string&, int64_t) { ++warnings; });
  for (int i = 0; i < 125; ++i) alarm.OnEvents({GroupFinished{}, GroupFinished{}});
  EXPECT_EQ(warnings, 0);
  EXPECT_EQ(registry.GetGauge("tandem_injected_faults", "")->Value(), 0);
}

}  // namespace
}  // namespace tandem::rollout
