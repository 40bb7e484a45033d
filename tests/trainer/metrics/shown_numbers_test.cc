// The thresholds of drift stand in one table of the trainer; what is shipped and written beside it
// says the same.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <string_view>

#include "absl/strings/str_cat.h"
#include "common/files/file_system.h"
#include "trainer/metrics/trainer_metrics.h"

namespace tandem::trainer {
namespace {

using ::testing::HasSubstr;

std::string TextOf(const std::string& path) {
  return ReadFile(absl::StrCat(TANDEM_SOURCE_DIR, "/", path)).value();
}

const ShownNumber& Number(std::string_view key) {
  return *std::ranges::find(ShownNumbers(), key, &ShownNumber::key);
}

TEST(ShownNumbersTest, TheHelpOfAGaugeStatesItsBounds) {
  EXPECT_EQ(HelpOf({.key = "k", .name = "n", .help = "A number."}), "A number.");
  EXPECT_EQ(HelpOf({.key = "k", .name = "n", .help = "A number.", .low = 0.5, .high = 2}),
            "A number. Worth a look below 0.5. Worth a look above 2.");
  EXPECT_EQ(Number("drift/k3").high, 1e-3);
}

TEST(ShownNumbersTest, AlertRulesHaveTheBoundsOfTheTable) {
  for (const char* const rules :
       {"deploy/observability/prometheus/tandem.rules.yaml",
        "deploy/kubernetes/components/pod-monitor/prometheus-rule.yaml"}) {
    SCOPED_TRACE(rules);
    const std::string text = TextOf(rules);
    const auto above = [&](std::string_view key) {
      return absl::StrCat(std::string(Number(key).name), " > ", Number(key).high, "\n");
    };
    const auto below = [&](std::string_view key, const char* end) {
      return absl::StrCat(std::string(Number(key).name), " < ", Number(key).low, end);
    };
    EXPECT_THAT(text, HasSubstr("expr: " + above("drift/mean_abs_delta")));
    EXPECT_THAT(text, HasSubstr("expr: " + below("drift/ess_fraction", "\n")));
    EXPECT_THAT(text, HasSubstr("expr: " + below("drift/mean_w", " or ") + above("drift/mean_w")));
  }
}

TEST(ShownNumbersTest, PagesHaveTheBoundsOfTheTable) {
  const double k3 = Number("drift/k3").high, ess = Number("drift/ess_fraction").low;
  const ShownNumber& weight = Number("drift/mean_w");
  const std::string alerts = TextOf("docs/observability.md"),
                    guide = TextOf("docs/mismatch_guide.md");
  EXPECT_THAT(alerts, HasSubstr(absl::StrCat("more than ", Number("drift/mean_abs_delta").high,
                                             " nats a token (mean abs(delta))")));
  EXPECT_THAT(alerts,
              HasSubstr(absl::StrCat("effective sample size of the tokens is below ", ess)));
  EXPECT_THAT(alerts, HasSubstr(absl::StrCat("weight left [", weight.low, ", ", weight.high, "]")));
  EXPECT_THAT(guide, HasSubstr("| over 1e-3 on a dense model"));
  EXPECT_EQ(k3, 1e-3) << "as the line above";
  EXPECT_THAT(guide,
              HasSubstr(absl::StrCat("| below ", ess, ". Ask whether it is before the clamp")));
  EXPECT_THAT(alerts, HasSubstr(absl::StrCat("`drift_guard` ", Number("drift/mean_abs_delta").high,
                                             " nats")));
}

}  // namespace
}  // namespace tandem::trainer
