#include "drift_lab/screening/alignment_signs.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "drift_lab/screening/lattice_signs.h"
#include "tests/drift_lab/screening/made_records.h"

namespace tandem::drift {
namespace {

using testing::ChangeRows;
using testing::MakeRecords;

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

Alignment AlignmentOf(const Records& records) {
  return AlignmentSigns(records, PairsOf(records), 1);
}

// Moves the behaviour's values by `by` tokens; what comes from outside the row has no value.
Records Shifted(Records records, const std::function<int64_t(int64_t)>& by) {
  ChangeRows(records, Column::kBehaviour, [&](int64_t row, std::vector<float>& values) {
    const std::vector<float> before = values;
    const auto n = std::ssize(values);
    for (int64_t t = 0; t < n; ++t) {
      const int64_t from = t - by(row);
      values[static_cast<size_t>(t)] =
          from >= 0 && from < n ? before[static_cast<size_t>(from)] : kNan;
    }
  });
  return records;
}

TEST(AlignmentSigns, RuleShiftsOutWhereTheSidesAgreeInPlace) {
  const Alignment found = AlignmentOf(MakeRecords());
  EXPECT_TRUE(found.in_place);
  ASSERT_EQ(found.signs.size(), 1U);
  EXPECT_EQ(found.signs[0].verdict, SignVerdict::kRuledOut);
}

TEST(AlignmentSigns, FindEveryShiftUpToTwoTokensAndItsDirection) {
  for (const int shift : {-2, -1, 1, 2}) {
    const Alignment found = AlignmentOf(Shifted(MakeRecords(), [=](int64_t) { return shift; }));
    EXPECT_FALSE(found.in_place) << shift;
    ASSERT_EQ(found.signs.size(), 1U);
    EXPECT_EQ(found.signs[0].id, "shift");
    EXPECT_TRUE(found.signs[0].accuses);
    const std::string place = std::string("proximal_logprobs[t ") + (shift > 0 ? "- " : "+ ") +
                              std::to_string(std::abs(shift));
    EXPECT_NE(found.signs[0].statement.find(place), std::string::npos) << found.signs[0].statement;
    EXPECT_DOUBLE_EQ(found.signs[0].value.value, 1);
  }
}

TEST(AlignmentSigns, EstimateTheShareOfShiftedRows) {
  const Alignment found =
      AlignmentOf(Shifted(MakeRecords(), [](int64_t row) { return row % 4 == 0 ? 1 : 0; }));
  ASSERT_EQ(found.signs.size(), 1U);
  EXPECT_EQ(found.signs[0].id, "shift");
  EXPECT_DOUBLE_EQ(found.signs[0].value.value, 0.25);
  EXPECT_LT(found.signs[0].value.low, 0.25);
  EXPECT_GT(found.signs[0].value.high, 0.25);
}

TEST(AlignmentSigns, TellAPromptThatWasIncludedFromAConstantShift) {
  Records records = MakeRecords({.tokens = 48});
  records.drawn.assign(records.drawn.size(), 0);
  // Prompts of 5, 6 or 7 tokens: the same values, of which the first were drawn.
  for (int64_t row = 0; row < records.num_rows(); ++row) {
    for (int64_t n = records.begin_of(row) + 5 + row % 3; n < records.end_of(row); ++n)
      records.drawn[static_cast<size_t>(n)] = 1;
  }
  const Alignment found = AlignmentOf(Shifted(records, [](int64_t row) { return 5 + row % 3; }));
  ASSERT_EQ(found.signs.size(), 1U);
  EXPECT_EQ(found.signs[0].id, "prompt_shift");
}

TEST(AlignmentSigns, FindRowsThatWerePaddedOnTheOtherSide) {
  Records records = MakeRecords({.tokens = 60});
  for (int64_t row = 0; row < records.num_rows(); ++row) {  // lengths of 25 to 60
    for (int64_t n = records.begin_of(row) + 5; n < records.begin_of(row) + 5 + row % 6; ++n)
      records.drawn[static_cast<size_t>(n)] = 0;
  }
  const TokenPairs pairs = PairsOf(records);
  const Alignment found = AlignmentOf(Shifted(
      records, [&](int64_t row) { return static_cast<int64_t>(pairs.length_of(row)) - 60; }));
  ASSERT_EQ(found.signs.size(), 1U);
  EXPECT_EQ(found.signs[0].id, "padding_shift");
}

TEST(AlignmentSigns, FindRowsOfOtherCompletions) {
  Records records = MakeRecords({.rows = 40});
  std::vector<std::vector<float>> rows;
  ChangeRows(records, Column::kBehaviour,
             [&](int64_t, std::vector<float>& values) { rows.push_back(values); });
  ChangeRows(records, Column::kBehaviour, [&](int64_t row, std::vector<float>& values) {
    const std::vector<float>& other = rows[static_cast<size_t>((row + 3) % 40)];
    for (size_t t = 0; t < values.size(); ++t) values[t] = t < other.size() ? other[t] : kNan;
  });
  const Alignment found = AlignmentOf(records);
  EXPECT_FALSE(found.in_place);
  ASSERT_EQ(found.signs.size(), 1U);
  EXPECT_EQ(found.signs[0].id, "other_rows");
  EXPECT_NE(found.signs[0].statement.find("those of row r stand in row r - 3"), std::string::npos)
      << found.signs[0].statement;
}

TEST(AlignmentSigns, CallOtherEnginesNeitherShiftedNorExchanged) {
  Records records = MakeRecords();
  const Records other = MakeRecords({.seed = 9});
  records.columns[static_cast<size_t>(Column::kProximal)] =
      other.columns[static_cast<size_t>(Column::kProximal)];
  const Alignment found = AlignmentOf(records);
  EXPECT_FALSE(found.in_place);
  ASSERT_EQ(found.signs.size(), 1U);
  EXPECT_EQ(found.signs[0].id, "unrelated");
  EXPECT_FALSE(found.signs[0].accuses);
}

TEST(AlignmentSigns, AreInPlaceWhereTheTemperatureDiffers) {
  EXPECT_TRUE(AlignmentOf(MakeRecords({.temperature = 0.6})).in_place);
}

TEST(LogBase, IsFoundFromItsFactorAndNotTakenForATemperature) {
  for (const auto& [factor, name] : {std::pair(1.442695F, "behaviour_logprobs are in base 2"),
                                     std::pair(0.4342945F, "behaviour_logprobs are in base 10")}) {
    Records records = MakeRecords();
    ChangeRows(records, Column::kBehaviour, [f = factor](int64_t, std::vector<float>& values) {
      for (float& x : values) x *= f;
    });
    const Sign sign = LogBaseSign(PairsOf(records));
    EXPECT_TRUE(sign.accuses) << factor;
    EXPECT_NE(sign.statement.find(name), std::string::npos) << sign.statement;
  }
  for (const double temperature : {0.5, 0.7, 1.0, 1.4427}) {
    EXPECT_FALSE(LogBaseSign(PairsOf(MakeRecords({.temperature = temperature}))).accuses)
        << temperature;
  }
}

TEST(Lattice, OfFloat16Bfloat16AndDecimalsIsNamed) {
  const auto cut = [](float x, uint32_t bits) {
    return std::bit_cast<float>(std::bit_cast<uint32_t>(x) & ~bits);
  };
  std::vector<float> bfloat16, float16;
  for (int i = 1; i <= 8; ++i) {
    bfloat16.push_back(cut(-0.3137F * static_cast<float>(i), 0xffff));
    float16.push_back(cut(-0.3137F * static_cast<float>(i), 0x1fff));
  }
  EXPECT_EQ(LatticeOf(bfloat16).name, "bfloat16");
  EXPECT_EQ(LatticeOf(float16).name, "float16");
  const std::vector<float> decimals = {-1.001F, -2.013F, -0.517F, -0.233F,
                                       -1.129F, -3.777F, -0.641F, -0.119F};
  EXPECT_EQ(LatticeOf(decimals).name, "decimal:3");
  EXPECT_DOUBLE_EQ(LatticeOf(decimals).mean_error, 0.00025);
  const std::vector<float> others = {-1.00137421F, -2.0138713F, -0.51713211F, -0.2337519F,
                                     -1.1297331F,  -3.7771331F, -0.6411357F,  -0.1192233F};
  EXPECT_EQ(LatticeOf(others).name, "");
}

TEST(Rounding, AccusesOnlyWhatTheHeaderDoesNotDeclare) {
  Records records = MakeRecords();
  ChangeRows(records, Column::kBehaviour, [](int64_t, std::vector<float>& values) {
    for (float& x : values) x = static_cast<float>(std::round(x * 1000.0) / 1000.0);
  });
  std::vector<Sign> signs = RoundingSigns(records, PairsOf(records));
  ASSERT_EQ(signs.size(), 2U);
  EXPECT_TRUE(signs[0].accuses);
  EXPECT_EQ(signs[0].side, SignSide::kBehaviour);
  EXPECT_EQ(signs[1].verdict, SignVerdict::kRuledOut);
  records.header.columns["behaviour_logprobs"].digits = "decimal:3";
  signs = RoundingSigns(records, PairsOf(records));
  EXPECT_FALSE(signs[0].accuses);
  EXPECT_EQ(signs[0].verdict, SignVerdict::kShown);
}

}  // namespace
}  // namespace tandem::drift
