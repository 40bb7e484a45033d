#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <nlohmann/json.hpp>
#include <string>

#include "drift_lab/pages/engine_options.h"
#include "drift_lab/pages/referee_report.h"
#include "drift_lab/pages/screening_report.h"

namespace tandem::drift {
namespace {

using ::nlohmann::json;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

// One row: a token of the prompt and four drawn ones.
Records SmallRecords() {
  Records records;
  records.token_ids = {1, 10, 11, 12, 13};
  records.drawn = {0, 1, 1, 1, 1};
  records.offsets = {0, 5};
  records.rows.resize(1);
  records.columns[static_cast<size_t>(Column::kBehaviour)] = {-1, -1, -2, -0.5, -3};
  records.columns[static_cast<size_t>(Column::kProximal)] = {-1, -1.5, -2, -0.25, -2};
  return records;
}

SideReport Side(SignSide side, const char* engine, SideStatus status) {
  SideReport report;
  report.side = side;
  report.engine = engine;
  report.status = status;
  return report;
}

RefereeReport SmallReport() {
  RefereeReport report;
  report.headline = "The behaviour side (vllm) is off; the proximal side (trainer) is not.";
  report.sides = {Side(SignSide::kBehaviour, "vllm", SideStatus::kNamed),
                  Side(SignSide::kProximal, "trainer", SideStatus::kSameNumbers)};
  RefereeCause cause{.cause = "quantised_kv", .text = "keys and values in int8", .advice = "look"};
  cause.explained.share = {.value = 0.98, .low = 0.96, .high = 0.99};
  report.sides[0].causes = {cause};
  report.sides[0].advice = "look";
  return report;
}

json PageOf(const Records& records, const RefereeReport* referee) {
  return json::parse(RecordsPageData(records, Screen(records, 1), referee, nullptr));
}

TEST(RecordsPageTest, HoldsTheVerdictOfTheRefereeWithTheOptionsOfTheEngine) {
  const RefereeReport report = SmallReport();
  const json page = PageOf(SmallRecords(), &report);
  const json& side = page.at("referee").at("sides").at(0);
  EXPECT_EQ(page.at("referee").at("headline"), report.headline);
  EXPECT_EQ(side.at("status"), "named");
  EXPECT_EQ(side.at("causes").at(0).at("explained_share").at("low"), 0.96);
  EXPECT_EQ(side.at("options"), "vllm: --kv-cache-dtype");
  EXPECT_EQ(page.at("referee").at("sides").at(1).at("options"), "");
  EXPECT_GT(page.at("referee").at("most_rounding").at("times_bf16"), 1);
}

TEST(RecordsPageTest, HasNoRefereeWhereThereIsNone) {
  EXPECT_FALSE(PageOf(SmallRecords(), nullptr).contains("referee"));
}

TEST(RecordsPageTest, DrawsTheGapOverTheEntropyOfTheBehaviourSide) {
  Records records = SmallRecords();
  EXPECT_FALSE(PageOf(records, nullptr).contains("by_entropy"));
  records.columns[static_cast<size_t>(Column::kProximalEntropy)] = {9, 9, 9, 9, 9};
  EXPECT_EQ(PageOf(records, nullptr).at("entropy_of"), "proximal");
  const float nan = std::numeric_limits<float>::quiet_NaN();
  records.columns[static_cast<size_t>(Column::kBehaviourEntropy)] = {0, 2, nan, 0.5, 1};
  const json page = PageOf(records, nullptr);
  EXPECT_EQ(page.at("entropy_of"), "behaviour");
  EXPECT_THAT(page.at("by_entropy").at("x"), ElementsAre(0.5, 1, 2));
  EXPECT_THAT(page.at("by_entropy").at("mean"), ElementsAre(0.25, 1, -0.5));
}

TEST(RefereeReportTest, NamesOptionsOnlyOfWhatWasFound) {
  RefereeReport report = SmallReport();
  EXPECT_THAT(RefereeTable(report), HasSubstr("options of vllm: --kv-cache-dtype"));
  report.sides[0].status = SideStatus::kUnknown;  // the cause is the nearest, and no finding
  EXPECT_THAT(RefereeTable(report), Not(HasSubstr("options of")));
  report.sides[0].draws_checked = true;
  report.sides[0].draws.follows = false;
  report.sides[0].draws.best.causes = {"filter_order", "min_p"};
  EXPECT_THAT(RefereeTable(report), HasSubstr("options of vllm: min_p, --generation-config"));
}

TEST(EngineOptionsTest, LooksUpEachPartOfACauseUnderTheNamesOfTheEngine) {
  EXPECT_EQ(EngineOptions("sglang", "quantised_kv+raw_logprobs"),
            "--kv-cache-dtype; the environment variable SGLANG_RETURN_ORIGINAL_LOGPROB");
  EXPECT_EQ(EngineOptions("llama.cpp", "quantised_kv"), EngineOptions("llama_cpp", "quantised_kv"));
  EXPECT_EQ(EngineOptions("vllm", "position_offset"), "");
  EXPECT_EQ(EngineOptions("a trainer of my own", "quantised_kv"), "");
}

}  // namespace
}  // namespace tandem::drift
