#include "drift_lab/screening/screening.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <string>
#include <vector>

#include "tests/drift_lab/screening/made_records.h"

namespace tandem::drift {
namespace {

using testing::ChangeRows;
using testing::MakeRecords;
using testing::RecordsOf;

Sign SignOf(const Screening& screening, const std::string& id) {
  for (const Sign& sign : screening.signs) {
    if (sign.id == id) return sign;
  }
  ADD_FAILURE() << "no sign " << id;
  return {};
}

std::string AccusedIds(const Screening& screening) {
  std::string ids;
  for (const Sign& sign : screening.signs) {
    if (sign.accuses) ids += sign.id + " ";
  }
  return ids;
}

TEST(Screen, FindsHealthyNumbersHealthyAndAccusesNothing) {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    const Screening screening =
        Screen(MakeRecords({.seed = seed, .noise = 0.02, .entropies = true, .top = true}), 1);
    EXPECT_EQ(AccusedIds(screening), "") << seed;
    EXPECT_EQ(screening.verdict, ScreeningVerdict::kNumbersAlone) << screening.headline;
    EXPECT_EQ(screening.command, "tandem drift why made.jsonl --model DIR");
  }
}

TEST(Screen, PutsAModelIntoACommandOnlyWhereAShellTakesItAsItIs) {
  Records records = MakeRecords();
  records.header.model = "org/Some-Model_1.5";
  EXPECT_EQ(Screen(records, 1).command, "tandem drift why made.jsonl --model org/Some-Model_1.5");
  for (const char* odd : {"$(touch x)", "a b", "-rf", "a;b", "a\nb"}) {
    records.header.model = odd;
    EXPECT_EQ(Screen(records, 1).command, "tandem drift why made.jsonl --model DIR") << odd;
  }
}

TEST(Screen, SaysThatSidesAreIdentical) {
  const Screening screening = Screen(MakeRecords({.noise = 0}), 1);
  EXPECT_EQ(screening.verdict, ScreeningVerdict::kIdentical);
  EXPECT_EQ(screening.effect.mean_abs_delta.value, 0);
}

TEST(Screen, HasNothingToCompareWithoutOneSide) {
  Records records = MakeRecords();
  records.columns[static_cast<size_t>(Column::kProximal)].clear();
  const Screening screening = Screen(records, 1);
  EXPECT_EQ(screening.verdict, ScreeningVerdict::kNothingToCompare);
}

TEST(Screen, AsksForWeightsWhereMoreThanNumbersDiffersAndNothingShows) {
  const Screening screening = Screen(MakeRecords({.noise = 0.5}), 1);
  EXPECT_EQ(AccusedIds(screening), "");
  EXPECT_EQ(screening.verdict, ScreeningVerdict::kNeedsWeights) << screening.headline;
}

TEST(Screen, NamesATruncatedSupportByTheRetainedMass) {
  const Screening screening = Screen(MakeRecords({.rows = 200, .top_k = 8}), 1);
  const Sign sign = SignOf(screening, "truncation");
  EXPECT_TRUE(sign.accuses) << sign.statement;
  EXPECT_EQ(sign.side, SignSide::kBehaviour);
  EXPECT_NEAR(1 - sign.value.value, screening.effect.mean_w.value, 1e-12);
  Records claimed = MakeRecords({.rows = 200, .top_k = 8});
  claimed.header.behaviour.top_k = 8;
  EXPECT_FALSE(SignOf(Screen(claimed, 1), "truncation").accuses);
  EXPECT_NE(
      Screen(claimed, 1).headline.find("Declared, and part of it: The behaviour policy leaves out"),
      std::string::npos);
}

TEST(Screen, NamesATemperatureFromTopTokensAndFromEntropy) {
  for (const bool top : {false, true}) {
    const Sign sign = SignOf(
        Screen(MakeRecords({.rows = 200, .temperature = 0.8, .entropies = !top, .top = top}), 1),
        "temperature");
    EXPECT_TRUE(sign.accuses) << sign.statement;
    EXPECT_NEAR(sign.value.value, 1 / 0.8, top ? 0.01 : 0.1);
    EXPECT_LT(sign.value.low, 1.27);
    EXPECT_GT(sign.value.high, 1.15);
  }
}

TEST(Screen, SuspectsATemperatureAtMostWhereTokensAreLeftOut) {
  const Screening screening =
      Screen(MakeRecords({.rows = 200, .temperature = 0.8, .top_k = 4, .entropies = true}), 1);
  EXPECT_TRUE(SignOf(screening, "truncation").accuses);
  const Sign sign = SignOf(screening, "temperature");
  EXPECT_FALSE(sign.accuses) << sign.statement;
}

TEST(Screen, TakesNeitherACapOnLogitsForATemperatureNorFarPoliciesForAFilter) {
  // A cap of 2.5 on the log-probs of one side bends them, which a temperature does not.
  Records capped = MakeRecords({.rows = 200, .top = true});
  for (float& x : capped.proximal_top.logprobs) x = 2.5F * std::tanh(x / 2.5F);
  EXPECT_FALSE(SignOf(Screen(capped, 1), "temperature").accuses);
  for (const double noise : {0.5, 1.0, 1.5, 2.5}) {
    EXPECT_EQ(AccusedIds(Screen(
                  MakeRecords({.rows = 200, .noise = noise, .entropies = true, .top = true}), 1)),
              "")
        << noise;
  }
}

TEST(Screen, TakesALossWithLabelSmoothingForNoFilter) {
  Records records = MakeRecords({.rows = 200});
  ChangeRows(records, Column::kProximal, [](int64_t, std::vector<float>& values) {
    for (float& x : values) x = 0.9F * x - 0.1F * 15;  // the mean log-prob of a vocabulary
  });
  const Screening screening = Screen(records, 1);
  EXPECT_EQ(AccusedIds(screening), "");
  EXPECT_EQ(SignOf(screening, "truncation").verdict, SignVerdict::kCannotTell);
}

TEST(Screen, LooksForZerosBeforeAFilterThatTheyLookLike) {
  Records records = MakeRecords({.rows = 200});
  ChangeRows(records, Column::kBehaviour, [](int64_t row, std::vector<float>& values) {
    if (row % 2 == 0) std::fill(values.end() - 5, values.end(), 0.0F);
  });
  EXPECT_EQ(AccusedIds(Screen(records, 1)), "last_value_zero ");
}

TEST(Screen, SuspectsATemperatureAtMostWithoutEntropy) {
  const Sign sign =
      SignOf(Screen(MakeRecords({.rows = 200, .temperature = 0.7}), 1), "temperature");
  EXPECT_FALSE(sign.accuses) << sign.statement;
  EXPECT_FALSE(sign.command.empty());
}

TEST(Screen, ShowsThatDrawsDoNotFollowTheRecord) {
  const Sign sharper = SignOf(
      Screen(MakeRecords({.rows = 200, .draw_temperature = 0.7, .entropies = true}), 1), "draws");
  EXPECT_TRUE(sharper.accuses) << sharper.statement;
  EXPECT_LT(sharper.value.value, -4);
  EXPECT_EQ(SignOf(Screen(MakeRecords({.rows = 200, .entropies = true}), 1), "draws").verdict,
            SignVerdict::kRuledOut);
}

TEST(Screen, ShowsRawLogProbsByTheMeanWeightWithoutAnEntropy) {
  // Draws and trainer at temperature 0.7, the record at 1: the mean of pi / mu over such draws is above 1.
  Records raw = MakeRecords({.rows = 200, .proximal_temperature = 0.7, .draw_temperature = 0.7});
  const Sign sign = SignOf(Screen(raw, 1), "draws");
  EXPECT_TRUE(sign.accuses) << sign.statement;
  EXPECT_GT(sign.value.low, 1.01);
  raw.header.behaviour = {.logprobs = "raw", .temperature = 0.7};
  EXPECT_FALSE(SignOf(Screen(raw, 1), "draws").accuses);
  EXPECT_EQ(SignOf(Screen(MakeRecords({.rows = 200, .noise = 0.5}), 1), "draws").verdict,
            SignVerdict::kCannotTell);
}

TEST(Screen, GoesOnBehindTheBaseOfTheLogs) {
  Records records = MakeRecords();
  ChangeRows(records, Column::kBehaviour, [](int64_t, std::vector<float>& values) {
    for (float& x : values) x /= std::log(2.0F);
  });
  const Screening screening = Screen(records, 1);
  EXPECT_EQ(AccusedIds(screening), "log_base ");
  EXPECT_EQ(SignOf(screening, "shift").verdict, SignVerdict::kRuledOut);
}

TEST(Screen, FindsGrowthAlongRowsAndBurstsAndSomeRows) {
  Records late = MakeRecords({.rows = 100});
  ChangeRows(late, Column::kProximal, [](int64_t row, std::vector<float>& values) {
    for (size_t t = values.size() / 2; t < values.size(); ++t)
      values[t] *= (row + static_cast<int64_t>(t)) % 2 == 0 ? 1.05F : 0.95F;
  });
  EXPECT_TRUE(SignOf(Screen(late, 1), "position").accuses);
  Records bursts = MakeRecords({.rows = 100});
  ChangeRows(bursts, Column::kProximal, [](int64_t row, std::vector<float>& values) {
    if (row % 10 == 0) values[7] -= 4;
  });
  EXPECT_EQ(AccusedIds(Screen(bursts, 1)), "few_tokens ");
  Records rows = MakeRecords({.rows = 100});
  ChangeRows(rows, Column::kProximal, [](int64_t row, std::vector<float>& values) {
    for (size_t t = 0; t < values.size(); ++t)
      values[t] *= row % 20 != 0 ? 1 : t % 2 == 0 ? 1.3F : 0.7F;
  });
  EXPECT_EQ(AccusedIds(Screen(rows, 1)), "some_rows ");
  // Rows that say that older weights drew them accuse nobody: training on some rows does this.
  for (RowFacts& facts : rows.rows) {
    facts.proximal_version = 12;
    facts.spans = {{.version = 11, .num_tokens = 1}};
  }
  const Screening declared = Screen(rows, 1);
  EXPECT_EQ(AccusedIds(declared), "");
  EXPECT_EQ(SignOf(declared, "some_rows").verdict, SignVerdict::kShown);
  EXPECT_EQ(SignOf(declared, "some_rows").statement.find("mean weight version"), std::string::npos);
}

TEST(Screen, TellsNotDeliveredFromStaleByTheLag) {
  Records records = MakeRecords({.rows = 120});
  ChangeRows(records, Column::kProximal, [](int64_t row, std::vector<float>& values) {
    for (size_t t = 0; t < values.size(); ++t)
      values[t] *= 1 + (t % 2 == 0 ? 0.002F : -0.002F) * static_cast<float>(row);
  });
  for (int64_t row = 0; row < 120; ++row) {
    RowFacts& facts = records.rows[static_cast<size_t>(row)];
    facts.step = row / 10;
    facts.proximal_version = row / 10;
    facts.spans = {{.version = row / 10, .num_tokens = 1}};
  }
  const Sign sign = SignOf(Screen(records, 1), "steps");
  EXPECT_TRUE(sign.accuses);
  EXPECT_NE(sign.statement.find("not delivered"), std::string::npos) << sign.statement;
}

TEST(EffectOnTraining, IsThatOfHandWorkedRows) {
  // Weights 2, 1/2 and 1: k3 = (1 - ln 2 + ln 2 - 1/2) / 3.
  const float ln2 = std::log(2.0F);
  Records records = RecordsOf({{-1, -1, -1}}, {{-1 + ln2, -1 - ln2, -1}});
  records.rows[0].advantage = 0.5;
  const TrainingEffect effect = EffectOnTraining(records, PairsOf(records), 1);
  EXPECT_EQ(effect.num_tokens, 3);
  EXPECT_NEAR(effect.k3.value, 0.5 / 3, 1e-6);
  EXPECT_NEAR(effect.k1.value, 0, 1e-7);
  EXPECT_NEAR(effect.mean_w.value, 3.5 / 3, 1e-6);
  EXPECT_NEAR(effect.ess.value, 3.5 * 3.5 / (3 * 5.25), 1e-6);
  EXPECT_NEAR(effect.clipped.value, 2.0 / 3, 1e-9);
  EXPECT_TRUE(effect.has_advantages);
  EXPECT_NEAR(effect.bias_positive.value, 0.5 / 3, 1e-6);
}

TEST(Screen, ScreensAHundredThousandTokensInSeconds) {
  const Records records =
      MakeRecords({.rows = 2000, .tokens = 60, .noise = 0.02, .entropies = true, .top = true});
  const auto start = std::chrono::steady_clock::now();
  EXPECT_EQ(AccusedIds(Screen(records, 1)), "");
  EXPECT_LT(std::chrono::steady_clock::now() - start,
            std::chrono::seconds(20));  // sanitizers included
}

}  // namespace
}  // namespace tandem::drift
