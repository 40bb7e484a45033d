#include "drift_lab/replay/replay_variants.h"

#include <gtest/gtest.h>

#include <cmath>
#include <set>
#include <string>
#include <vector>

#include "tests/support/status_matchers.h"

namespace tandem::drift {
namespace {

using ::tandem::testing::FailsWith;
using ::tandem::testing::IsOk;

// Completions whose tokens every bound of the lists tells apart: gaps of 1e-4 to 3 nats, both
// signs.
struct Batch {
  std::vector<double> behaviour, proximal, advantages;
  std::vector<uint8_t> mask;
  std::vector<int64_t> completion;

  Batch() {
    for (int s = 0; s < 24; ++s) {
      for (int t = 0; t < 6; ++t) {
        const double gap = std::pow(10, -4 + s / 6) * (1 + t) * (t % 2 == 0 ? 0.9 : -0.5);
        behaviour.push_back(-1.2);
        proximal.push_back(-1.2 + gap);
        advantages.push_back(s % 2 == 0 ? 1 : -1);
        mask.push_back(1);
        completion.push_back(s);
      }
    }
  }
  std::vector<double> Coefficients(const offpolicy::MethodOptions& options) const {
    return offpolicy::EvaluateMethod({behaviour, proximal, proximal, advantages, mask, completion},
                                     options)
        .value()
        .coefficient;
  }
};

TEST(ReplayVariantsTest, EveryNamedMethodStandsOnceBehindTheReferences) {
  const auto variants = SelectVariants({});
  ASSERT_THAT(variants, IsOk());
  ASSERT_EQ(variants->size(), offpolicy::NamedMethods().size() + kNumReferences - 1);
  EXPECT_EQ((*variants)[0].method, "off");
  EXPECT_EQ((*variants)[1].method, "exact_token");
  EXPECT_EQ((*variants)[2].method, "exact");
  std::set<std::string> names;
  for (const ReplayVariant& variant : *variants) names.insert(variant.method);
  EXPECT_EQ(names.size(), variants->size());
  for (const offpolicy::NamedMethod& method : offpolicy::NamedMethods()) {
    EXPECT_TRUE(names.contains(std::string(method.name))) << method.name;
  }
}

TEST(ReplayVariantsTest, TheFirstThresholdOfAListIsTheMethodsOwn) {
  const Batch batch;
  const auto variants = SelectVariants({});
  ASSERT_THAT(variants, IsOk());
  for (const ReplayVariant& variant : *variants) {
    if (variant.threshold.empty()) continue;
    const auto own = offpolicy::FindMethod(variant.method);
    EXPECT_EQ(batch.Coefficients(variant.options), batch.Coefficients(*own)) << variant.method;
  }
}

TEST(ReplayVariantsTest, EveryThresholdOfAListIsAcceptedAndNoTwoOfThemAreTheSame) {
  const auto all = SelectVariants({.all = true});
  ASSERT_THAT(all, IsOk());
  std::set<std::pair<std::string, std::string>> seen;
  for (const ReplayVariant& variant : *all) {
    EXPECT_TRUE(seen.emplace(variant.method, variant.threshold).second)
        << variant.method << " " << variant.threshold;
  }
  EXPECT_GT(all->size(), 80u);
}

TEST(ReplayVariantsTest, AThresholdActsWhereItsMethodSaysItDoes) {
  const Batch batch;
  const auto loose = SelectVariants({.methods = {"icepop"}, .thresholds = {"0.5:2", "0.9:1.1"}});
  ASSERT_THAT(loose, IsOk());
  ASSERT_EQ(loose->size(), kNumReferences + 2);
  EXPECT_EQ((*loose)[3].options.correction.min_weight, 0.5);
  EXPECT_EQ((*loose)[4].options.correction.max_weight, 1.1);
  EXPECT_NE(batch.Coefficients((*loose)[3].options), batch.Coefficients((*loose)[4].options));
}

TEST(ReplayVariantsTest, SaysWhatIsWrongWithASelection) {
  EXPECT_THAT(SelectVariants({.methods = {"tiss"}}),
              FailsWith(absl::StatusCode::kNotFound, "no method 'tiss'; there are off, tis"));
  EXPECT_THAT(SelectVariants({.thresholds = {"2"}}),
              FailsWith(absl::StatusCode::kInvalidArgument, "name the methods"));
  EXPECT_THAT(SelectVariants({.methods = {"topr"}, .thresholds = {"2"}}),
              FailsWith(absl::StatusCode::kInvalidArgument, "topr has no threshold"));
  EXPECT_THAT(SelectVariants({.methods = {"icepop"}, .thresholds = {"2"}}),
              FailsWith(absl::StatusCode::kInvalidArgument,
                        "has 1 values; it is correction.min_weight:correction.max_weight"));
  EXPECT_THAT(SelectVariants({.methods = {"tis"}, .thresholds = {"0.5"}}),
              FailsWith(absl::StatusCode::kInvalidArgument, "threshold '0.5' of method tis"));
}

TEST(ReplayVariantsTest, ABaselineGivesEveryRuleItsThresholdsAndNotesWhatItCannot) {
  BaselineNoise noise{.standard_deviation = 0.01};
  for (int i = 0; i < 40; ++i) {
    for (std::vector<double>* values : {&noise.token_w, &noise.product, &noise.geometric}) {
      values->push_back(0.98 + 0.001 * i);
    }
    noise.smallest_w.push_back(0.9 + 0.001 * i);
    for (std::vector<double>* values : {&noise.largest_k3, &noise.mean_k3, &noise.length_aware}) {
      values->push_back(0.1 * (i + 1));
    }
  }
  std::vector<std::string> notes;
  const double rates[] = {0.05, 0.01};
  const auto variants = BaselineVariants({"tis", "icepop", "z_gate", "topr"}, noise, rates, notes);
  // 41 x 0.05 = 2.05: the second from the end; 41 x 0.025 = 1.025: the first. 0.01 takes 99 values.
  ASSERT_EQ(variants.size(), 3u);
  EXPECT_EQ(variants[0].baseline_rate, 0.05);
  EXPECT_NEAR(variants[0].options.correction.max_weight, 1.018, 1e-12);
  EXPECT_NEAR(variants[1].options.correction.min_weight, 0.98, 1e-12);
  EXPECT_NEAR(variants[1].options.correction.max_weight, 1.019, 1e-12);
  EXPECT_NEAR(variants[2].options.correction.geometric_z, 3.9, 1e-12);
  EXPECT_EQ(variants[2].options.correction.geometric_noise, 0.01);
  ASSERT_EQ(notes.size(), 3u);
  EXPECT_EQ(notes[0],
            "rate 0.01, the baseline has 40 completions, and a rate of 0.01 on one side takes 99: "
            "z_gate");
  EXPECT_EQ(
      notes[1],
      "rate 0.01, the baseline has 40 tokens, and a rate of 0.005 on one side takes 199: icepop");
}

}  // namespace
}  // namespace tandem::drift
