#include "common/observe/metrics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace tandem {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

TEST(MetricsTest, TheSameNameAndLabelsAreTheSameCounter) {
  MetricsRegistry registry;
  Counter* dropped = registry.GetCounter("tandem_drops_total", "Drops.", {{"reason", "stale"}});
  dropped->Add();
  registry.GetCounter("tandem_drops_total", "Drops.", {{"reason", "stale"}})->Add(2);
  registry.GetCounter("tandem_drops_total", "Drops.", {{"reason", "failed"}})->Add(5);
  EXPECT_EQ(dropped->Value(), 3);
  EXPECT_THAT(registry.Render(), HasSubstr("tandem_drops_total{reason=\"stale\"} 3"));
  EXPECT_THAT(registry.Render(), HasSubstr("tandem_drops_total{reason=\"failed\"} 5"));
}

TEST(MetricsTest, RendersGaugesAndHistogramsWithTheirHelp) {
  MetricsRegistry registry;
  registry.GetGauge("tandem_live_version", "Live version.")->Set(4);
  HistogramMetric* lengths = registry.GetHistogram("tandem_length", "Lengths.", {1, 10});
  lengths->Observe(0.5);
  lengths->Observe(5);
  const std::string text = registry.Render();
  EXPECT_THAT(text, HasSubstr("# HELP tandem_live_version Live version."));
  EXPECT_THAT(text, HasSubstr("tandem_live_version 4"));
  EXPECT_THAT(text, HasSubstr("tandem_length_bucket{le=\"1\"} 1"));
  EXPECT_THAT(text, HasSubstr("tandem_length_bucket{le=\"10\"} 2"));
  EXPECT_THAT(text, HasSubstr("tandem_length_sum 5.5"));
}

TEST(MetricsTest, ManyObservationsOfOneValueCountAsThatManyOfIt) {
  MetricsRegistry registry;
  HistogramMetric* staleness = registry.GetHistogram("tandem_staleness", "Versions.", {0, 1, 2});
  staleness->ObserveMany(1, 40);
  staleness->ObserveMany(0, 2);
  staleness->ObserveMany(7, 3);
  const std::string text = registry.Render();
  EXPECT_THAT(text, HasSubstr("tandem_staleness_bucket{le=\"0\"} 2\n"));
  EXPECT_THAT(text, HasSubstr("tandem_staleness_bucket{le=\"1\"} 42\n"));
  EXPECT_THAT(text, HasSubstr("tandem_staleness_bucket{le=\"+Inf\"} 45\n"));
  EXPECT_THAT(text, HasSubstr("tandem_staleness_sum 61\n")) << "40 x 1 + 3 x 7";
}

TEST(MetricsTest, WhatIsReadAndNotCountedIsReadWhenItIsRendered) {
  MetricsRegistry registry;
  Gauge* const level = registry.GetGauge("tandem_level", "Level.");
  double now = 3;
  registry.BeforeRender(&now, [&] { level->Set(now); });
  EXPECT_THAT(registry.Render(), HasSubstr("tandem_level 3\n"));
  now = 4;
  EXPECT_THAT(registry.Render(), HasSubstr("tandem_level 4\n"));
  registry.Forget(&now);
  now = 5;
  EXPECT_THAT(registry.Render(), Not(HasSubstr("tandem_level 5"))) << "its owner is gone";
}

TEST(MetricsDeathTest, ABadNameOrOneOfAnotherKindEndsTheProcess) {
  MetricsRegistry registry;
  registry.GetGauge("tandem_x", "X.");
  EXPECT_DEATH(registry.GetCounter("tandem_x", "X."), "TANDEM_CHECK failed");
  EXPECT_DEATH(registry.GetCounter("bad name", "X."), "TANDEM_CHECK failed");
}

}  // namespace
}  // namespace tandem
