#include "common/offpolicy/correction_method.h"

#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <set>
#include <sstream>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "tests/support/status_matchers.h"

namespace tandem::offpolicy {
namespace {

using ::tandem::testing::FailsWith;
using ::tandem::testing::IsOk;

// Two completions of a batch, in probabilities: w = 2 and 1/2 in the first, 1 in the second.
struct Batch {
  std::vector<double> behaviour = {std::log(0.2), std::log(0.4), std::log(0.3)};
  std::vector<double> proximal = {std::log(0.4), std::log(0.2), std::log(0.3)};
  std::vector<double> target = {std::log(0.44), std::log(0.2), std::log(0.3)};
  std::vector<double> advantages = {1, 1, -2};
  std::vector<uint8_t> mask = {1, 1, 1};
  std::vector<int64_t> completion = {0, 0, 1};

  MethodResult Evaluate(std::string_view settings) const {
    return EvaluateMethod({behaviour, proximal, target, advantages, mask, completion},
                          ParseMethod(settings).value())
        .value();
  }
};

void ExpectNear(const std::vector<double>& got, const std::vector<double>& want) {
  ASSERT_EQ(got.size(), want.size());
  for (size_t t = 0; t < want.size(); ++t) EXPECT_NEAR(got[t], want[t], 1e-12) << "token " << t;
}

TEST(CorrectionMethodTest, CoefficientsAreSlopeTimesScale) {
  const MethodResult result = Batch().Evaluate("correction.max_weight=1.5");
  ExpectNear(result.correction.weight, {1.5, 0.5, 1});
  ExpectNear(result.coefficient, {-1.5 * 1.1, -0.5, 2});
  EXPECT_EQ(result.denominator, 3);
  EXPECT_NEAR(result.loss, (-1.5 * 1.1 - 0.5 + 2) / 3, 1e-12);
  EXPECT_EQ(result.correction.num_capped, 1);
}

TEST(CorrectionMethodTest, SequenceNormalisationScalesByTheKeptTokensOfEachCompletion) {
  const MethodResult result = Batch().Evaluate("correction.kind=off loss.normalisation=sequence");
  ExpectNear(result.coefficient, {-0.5 * 1.1, -0.5, 2});
  EXPECT_EQ(result.denominator, 2);
}

TEST(CorrectionMethodTest, RefusedTokensLeaveTheDenominatorUnlessAllAreAskedFor) {
  const std::string mask = "correction.kind=token_mask correction.min_weight=0.9 ";
  const MethodResult kept = Batch().Evaluate(mask + "correction.max_weight=3");
  EXPECT_EQ(kept.denominator, 2);
  ExpectNear(kept.coefficient, {-2 * 1.1, 0, 2});
  const MethodResult all =
      Batch().Evaluate(mask + "correction.max_weight=3 correction.denominator=all");
  EXPECT_EQ(all.denominator, 3);
  ExpectNear(all.coefficient, kept.coefficient);
}

TEST(CorrectionMethodTest, WhenAllIsRefusedThereIsNothingToDivideBy) {
  Batch batch;
  batch.mask = {1, 1, 0};
  const MethodResult result = batch.Evaluate("correction.veto_threshold=0.9");
  EXPECT_EQ(result.denominator, 0);
  EXPECT_EQ(result.loss, 0);
  ExpectNear(result.coefficient, {0, 0, 0});
}

TEST(CorrectionMethodTest, EveryNamedMethodCanBeReadAndGivesNumbers) {
  std::set<std::string_view> names;
  const Batch batch;
  for (const NamedMethod& method : NamedMethods()) {
    EXPECT_TRUE(names.insert(method.name).second) << method.name << " stands twice";
    EXPECT_THAT(FindMethod(method.name), IsOk());
    for (const double coefficient : batch.Evaluate(method.settings).coefficient) {
      EXPECT_TRUE(std::isfinite(coefficient)) << method.name;
    }
  }
  EXPECT_EQ(FindMethod("icepop")->correction.max_weight, 5);
  EXPECT_EQ(FindMethod("vespo")->objective.kind, ObjectiveKind::kVespo);
}

TEST(CorrectionMethodTest, NamesWhatThereIsWhenAMethodIsUnknown) {
  EXPECT_THAT(FindMethod("vtrace"), FailsWith(absl::StatusCode::kNotFound, "gspo, sapo, vespo"));
  EXPECT_THAT(ParseMethod("correction.max_wieght=3"),
              FailsWith(absl::StatusCode::kInvalidArgument, "correction.max_weight"));
  EXPECT_THAT(ParseMethod("loss.kind=topr"),
              FailsWith(absl::StatusCode::kInvalidArgument, "bypass"));
}

// docs/corrections.md must name the settings that a method really has.
TEST(CorrectionMethodTest, ThePageHasEveryMethodWithItsSettings) {
  std::ifstream file(TANDEM_SOURCE_DIR "/docs/corrections.md");
  std::stringstream text;
  text << file.rdbuf();
  const std::string page = text.str();
  for (const NamedMethod& method : NamedMethods()) {
    // As users paste them, in the section of a run file.
    const std::string settings = absl::StrCat(
        "trainer.", absl::StrReplaceAll(std::string(method.settings), {{" ", " trainer."}}));
    const std::string row = absl::StrCat("| `", std::string(method.name), "` | `", settings, "` |");
    EXPECT_NE(page.find(row), std::string::npos) << "docs/corrections.md lacks " << row;
  }
}

TEST(CorrectionMethodTest, RefusesArraysThatDoNotRunInParallel) {
  Batch batch;
  batch.target.pop_back();
  EXPECT_THAT(EvaluateMethod({batch.behaviour, batch.proximal, batch.target, batch.advantages,
                              batch.mask, batch.completion},
                             {}),
              FailsWith(absl::StatusCode::kInvalidArgument, "target_logprobs has 2 elements"));
}

}  // namespace
}  // namespace tandem::offpolicy
