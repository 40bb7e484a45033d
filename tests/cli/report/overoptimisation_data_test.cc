#include "cli/report/overoptimisation_data.h"

#include <gtest/gtest.h>

#include <cmath>
#include <map>

namespace tandem::report {
namespace {

// A run whose gold reward follows d (2 - d) from 0.25 on, and whose proxy follows d (2 - 0 d), with
// completions of 4 tokens: k3 of a token is d^2 / 4.
std::map<int64_t, Json> Rows() {
  std::map<int64_t, Json> rows;
  for (int64_t step = 1; step <= 9; ++step) {
    const double d = 0.25 * static_cast<double>(step - 1);
    rows[step] = {{"step", step},
                  {"kl_reference/k3", d * d / 4},
                  {"length/mean", 4},
                  {"reward/mean", 0.5 + 2 * d},
                  {"reward/gold", 0.25 + d * (2 - d)}};
  }
  return rows;
}

TEST(OveroptimisationData, FindsTheLawThatTheGoldRewardFollowsAndItsPeak) {
  const Json data = BuildOveroptimisationData(Rows());
  ASSERT_EQ(data["points"].size(), 9u);
  EXPECT_DOUBLE_EQ(data["points"][4]["d"], 1);
  EXPECT_DOUBLE_EQ(data["points"][4]["gold"], 1.25);
  EXPECT_EQ(data["gold"]["better"], "best_of_n");
  const Json& law = data["gold"]["laws"]["best_of_n"];
  EXPECT_NEAR(law["alpha"], 2, 1e-9);
  EXPECT_NEAR(law["beta"], 1, 1e-9);
  EXPECT_NEAR(law["peak_distance"], 1, 1e-9);
  EXPECT_NEAR(law["curve"][0]["reward"], 0.25, 1e-12) << "counted from the first step";
  EXPECT_NEAR(law["curve"][60]["d"], 2, 1e-12);
  EXPECT_NEAR(law["curve"][60]["reward"], 0.25, 1e-9);
  EXPECT_NEAR(data["proxy"]["laws"]["best_of_n"]["alpha"], 2, 1e-9);
  EXPECT_NEAR(data["proxy"]["laws"]["best_of_n"]["beta"], 0, 1e-9);
}

TEST(OveroptimisationData, IsNotThereWithoutGoldAndSaysWhyThereIsNoFit) {
  std::map<int64_t, Json> rows = Rows();
  rows.erase(rows.begin(), rows.find(8));
  const Json few = BuildOveroptimisationData(rows);
  EXPECT_EQ(few["points"].size(), 2u);
  EXPECT_TRUE(few["gold"].contains("error"));
  for (auto& [step, row] : rows) row.erase("reward/gold");
  EXPECT_TRUE(BuildOveroptimisationData(rows).is_null());
}

}  // namespace
}  // namespace tandem::report
