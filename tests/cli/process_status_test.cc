#include "cli/watch/process_status.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/status_matchers.h"

namespace tandem::cli {
namespace {

using tandem::testing::FailsWith;

constexpr char kPage[] =
    "# HELP tandem_trainer_step Train steps done.\n"
    "# TYPE tandem_trainer_step gauge\n"
    "tandem_trainer_step 12\n"
    "tandem_trainer_planned_steps 100\n"
    "tandem_trainer_last_step_timestamp_seconds 1000.5\n"
    "tandem_trainer_rollout_wait_ratio 0.41\n"
    "tandem_trainer_staleness_mean_versions 0.75\n"
    "tandem_trainer_staleness_max_versions 2\n"
    "tandem_trainer_servers{state=\"ready\"} 3\n"
    "tandem_trainer_servers{state=\"not_ready\"} 1\n"
    "tandem_x{a=\"two words\"} 1e3\n";

TEST(ObserveStatusTest, SeriesAreReadWithTheirLabels) {
  const auto metrics = ParseMetrics(kPage);
  EXPECT_EQ(metrics.size(), 9u);
  EXPECT_EQ(metrics.at("tandem_trainer_servers{state=\"ready\"}"), 3);
  EXPECT_EQ(metrics.at("tandem_x{a=\"two words\"}"), 1000);
}

TEST(ObserveStatusTest, ATrainersLineHasStepAgeWaitStalenessAndServers) {
  EXPECT_EQ(
      DescribeTrainer(ParseMetrics(kPage), 1003.75),
      "step 12 of 100, the last 3.2 s ago  waits for rollouts 41% of a step  staleness mean 0.75, "
      "max 2  servers 3 of 4 ready");
  EXPECT_THAT(DescribeTrainer({}, 1003.75), ::testing::HasSubstr("step 0 of 0, none yet"));
}

TEST(ObserveStatusTest, AServersLineHasVersionGroupsAndCache) {
  EXPECT_EQ(DescribeServer({{"tandem_live_weight_version", 7},
                            {"tandem_groups_running", 8},
                            {"tandem_groups_queued", 3},
                            {"tandem_kv_used_tokens", 1200},
                            {"tandem_kv_capacity_tokens", 32768}}),
            "version 7  groups 8 running, 3 queued  KV 1200/32768");
}

TEST(ObserveStatusTest, AnAddressNobodyListensAtIsNamed) {
  EXPECT_THAT(AskObservePort("127.0.0.1:1", 2),
              FailsWith(absl::StatusCode::kUnavailable, "127.0.0.1:1"));
  EXPECT_THAT(AskObservePort("localhost", 2),
              FailsWith(absl::StatusCode::kInvalidArgument, "HOST:PORT"));
}

}  // namespace
}  // namespace tandem::cli
