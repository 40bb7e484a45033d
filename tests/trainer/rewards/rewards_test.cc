#include "trainer/rewards/rewards.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "common/files/file_system.h"
#include "tests/support/status_matchers.h"
#include "tests/support/temp_dir.h"

namespace tandem::trainer {
namespace {

using ::tandem::testing::FailsWith;
using ::tandem::testing::IsOk;
using ::tandem::testing::TempDir;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

struct Case {
  std::string name;
  std::string component;
  std::string text;
  std::string answer;
  double want;
  bool truncated = false;
};

class RewardTable : public ::testing::TestWithParam<Case> {};

TEST_P(RewardTable, ScoresOneCompletion) {
  const Case& c = GetParam();
  RewardOptions options;
  options.weights = {{c.component, 1.0}};
  options.regex = R"(answer is (\w+))";
  options.format = R"(<think>.*</think>\s*\d+)";
  options.length_soft_tokens = 2;
  options.length_hard_tokens = 6;
  auto rewards = RewardFunction::Create(options);
  ASSERT_THAT(rewards, IsOk());
  const auto scored = (*rewards)->Score({{.text = c.text,
                                          .answer = c.answer,
                                          .source_json = "{}",
                                          .num_tokens = static_cast<int64_t>(c.text.size()),
                                          .truncated = c.truncated}});
  EXPECT_DOUBLE_EQ(scored[0].value, c.want);
  EXPECT_THAT(scored[0].mask_reason, IsEmpty());
}

// clang-format off
INSTANTIATE_TEST_SUITE_P(Table, RewardTable, ::testing::Values(
    Case{"ExactIgnoresOuterSpace", "exact_match", " 12 \n", "12", 1},
    Case{"ExactWantsAll", "exact_match", "12.", "12", 0},
    Case{"LastNumber", "last_number", "3 apples, so 12", "12", 1},
    Case{"LastNumberNotTheFirst", "last_number", "12, or 3", "12", 0},
    Case{"LastNumberNumerically", "last_number", "it costs $1,234.50.", "1234.5", 1},
    Case{"LastNumberNone", "last_number", "twelve", "12", 0},
    Case{"AnyNumber", "any_number", "12, or 3", "12", 1},
    Case{"AnyNumberNegative", "any_number", "x = -7", "-7", 1},
    Case{"MinusBetweenNumbersIsNoSign", "any_number", "10-7", "-7", 0},
    Case{"Gsm8kMarked", "gsm8k", "5 + 7 = 12\n#### 12\nDone 3", "so 12\n#### 12", 1},
    Case{"Gsm8kUnmarkedTakesTheLast", "gsm8k", "5 + 7 = 12", "x\n#### 12", 1},
    Case{"Gsm8kThousands", "gsm8k", "#### 1,200", "#### 1200", 1},
    Case{"Gsm8kWrong", "gsm8k", "#### 13", "#### 12", 0},
    Case{"RegexGroup", "regex", "the answer is blue!", "blue", 1},
    Case{"RegexOther", "regex", "the answer is red", "blue", 0},
    Case{"FormatWhole", "format", "<think>a\nb</think> 4", "", 1},
    Case{"FormatPart", "format", "x <think>a</think> 4", "", 0},
    Case{"LengthShort", "length_penalty", "ab", "", 0},
    Case{"LengthHalf", "length_penalty", "abcd", "", -0.5},
    Case{"LengthLong", "length_penalty", "abcdefghij", "", -1},
    Case{"NumberRight", "number_answer", "12", "12", 1},
    Case{"NumberLast", "number_answer", "3 * 4 = 12", "12", 1},
    Case{"NumberNotLast", "number_answer", "12 is 3 * 4", "12", 0.2},
    Case{"NumberRightButCut", "number_answer", "3 * 4 = 12", "12", 0.2, true},
    Case{"NumberInsideAnother", "number_answer", "312", "12", 0},
    Case{"NumberLeadingZero", "number_answer", "012", "12", 1},
    Case{"NumberNone", "number_answer", "twelve", "12", 0},
    Case{"NumberDecimals", "number_answer", "It is 3.14.", "3.14", 1},
    Case{"NumberPartOfDecimals", "number_answer", "14", "3.14", 0},
    Case{"NumberDecimalsForAnInteger", "number_answer", "3.14", "14", 0},
    Case{"NumberNegative", "number_answer", "It is \u22125", "-5", 1},
    Case{"NumberWithoutItsSign", "number_answer", "5", "-5", 0},
    Case{"NumberThousands", "number_answer", "$1234", "1,234", 1},
    Case{"NumberPartOfThousands", "number_answer", "234", "1,234", 0},
    Case{"NumberLargeNeighbour", "number_answer", "1000001", "1000000", 0},
    Case{"NumberFraction", "number_answer", "0.75", "3/4", 1},
    Case{"NumberDenominatorAlone", "number_answer", "4", "3/4", 0},
    Case{"NumberScientific", "number_answer", "1.2e3", "1,200", 1},
    Case{"NumberPercent", "number_answer", "50%", "50", 1},
    Case{"LastNumberTypographicMinus", "last_number", "so \u22127", "-7", 1},
    Case{"Gsm8kFraction", "gsm8k", "#### 1/2", "0.5", 1}),
    [](const auto& info) { return info.param.name; });
// clang-format on

Reward ScoreTruncated(TruncatedPolicy policy) {
  RewardOptions options;
  options.weights = {{"last_number", 1.0}};
  options.truncated = policy;
  options.truncated_penalty = 0.25;
  auto rewards = RewardFunction::Create(options);
  EXPECT_THAT(rewards, IsOk());
  return (*rewards)->Score({{.text = "12", .answer = "12", .truncated = true}})[0];
}

TEST(Bug39TruncatedCompletions, EachPolicyIsExplicit) {
  EXPECT_DOUBLE_EQ(ScoreTruncated(TruncatedPolicy::kKeep).value, 1);
  EXPECT_DOUBLE_EQ(ScoreTruncated(TruncatedPolicy::kZero).value, 0);
  EXPECT_DOUBLE_EQ(ScoreTruncated(TruncatedPolicy::kPenalise).value, 0.75);
  EXPECT_EQ(ScoreTruncated(TruncatedPolicy::kMask).mask_reason, "truncated");
  EXPECT_THAT(ScoreTruncated(TruncatedPolicy::kKeep).mask_reason, IsEmpty());
}

TEST(Rewards, AddUpByWeightAndKeepTheirParts) {
  RewardOptions options;
  options.weights = {{"last_number", 2.0}, {"exact_match", 0.5}};
  auto rewards = RewardFunction::Create(options);
  ASSERT_THAT(rewards, IsOk());
  const auto scored = (*rewards)->Score({{.text = "so 12", .answer = "12"}});
  EXPECT_DOUBLE_EQ(scored[0].value, 2.0);
  EXPECT_THAT(scored[0].parts,
              ElementsAre(std::pair("last_number", 1.0), std::pair("exact_match", 0.0)));
}

TEST(Rewards, AnAnswerWithoutANumberMasksInsteadOfPunishing) {
  RewardOptions options;
  options.weights = {{"gsm8k", 1.0}};
  auto rewards = RewardFunction::Create(options);
  ASSERT_THAT(rewards, IsOk());
  EXPECT_THAT((*rewards)->Score({{.text = "12", .answer = "none"}})[0].mask_reason,
              HasSubstr("reward_failed: gsm8k: answer 'none' holds no number"));
  options.weights = {{"number_answer", 1.0}};
  rewards = RewardFunction::Create(options);
  EXPECT_THAT((*rewards)->Score({{.text = "12", .answer = "none"}})[0].mask_reason,
              HasSubstr("reward_failed: number_answer: answer 'none' holds no number"));
}

TEST(Rewards, AnAnswerInAnotherConventionMasksAndNoPartOfACompletionInOneIsRight) {
  RewardOptions options;
  auto rewards = RewardFunction::Create(options);
  ASSERT_THAT(rewards, IsOk());
  EXPECT_THAT((*rewards)->Score({{.text = "5", .answer = "0,5"}})[0].mask_reason,
              HasSubstr("answer '0,5' holds no number as English writes it, 1,234.5"));
  EXPECT_FALSE((*rewards)->Score({{.text = "0,5", .answer = "5"}})[0].correct);
  EXPECT_EQ((*rewards)->Score({{.text = "1.234,5", .answer = "5"}})[0].value, 0);
  EXPECT_TRUE((*rewards)->Score({{.text = "It is 14 cm^2.", .answer = "14"}})[0].correct);
}

TEST(Rewards, RefusesWhatCannotWork) {
  const auto create = [](RewardOptions options) {
    return RewardFunction::Create(options).status();
  };
  EXPECT_THAT(create({.weights = {}}), FailsWith(absl::StatusCode::kInvalidArgument, "empty"));
  EXPECT_THAT(
      create({.weights = {{"bleu", 1}}}),
      FailsWith(absl::StatusCode::kInvalidArgument, "no component 'bleu'; there are exact_match"));
  EXPECT_THAT(create({.weights = {{"regex", 1}}, .regex = "("}),
              FailsWith(absl::StatusCode::kInvalidArgument, "reward.regex: missing )"));
  EXPECT_THAT(create({.weights = {{"format", 1}}}),
              FailsWith(absl::StatusCode::kInvalidArgument, "no pattern"));
  EXPECT_THAT(create({.weights = {{"length_penalty", 1}}}),
              FailsWith(absl::StatusCode::kInvalidArgument, "length_hard_tokens"));
  EXPECT_THAT(create({.weights = {{"subprocess", 1}}}),
              FailsWith(absl::StatusCode::kInvalidArgument, "subprocess.command is empty"));
}

TEST(Rewards, APassThresholdThatNothingCanReachIsRefused) {
  RewardOptions options;
  options.weights = {{"number_answer", 0.5}, {"format", 0.5}};
  options.format = ".*";
  EXPECT_THAT(RewardFunction::Create(options).status(),
              FailsWith(absl::StatusCode::kInvalidArgument,
                        "reward.pass_threshold is 1, and the components that judge the answer "
                        "(number_answer) add up to 0.5 at most"));
  options.pass_threshold = 0.5;
  EXPECT_THAT(RewardFunction::Create(options), IsOk());
}

// In doubles 0.6 + 0.3 + 0.1, in the order of their names' weights, is 0.9999999999999999.
TEST(Rewards, WeightsThatAddUpToTheThresholdReachItWhateverTheirRounding) {
  RewardOptions options;
  options.weights = {{"exact_match", 0.6}, {"gsm8k", 0.3}, {"last_number", 0.1}};
  auto rewards = RewardFunction::Create(options);
  ASSERT_THAT(rewards, IsOk());
  const auto scored = (*rewards)->Score(
      {{.text = "#### 12", .answer = "#### 12"}, {.text = "so #### 12", .answer = "#### 12"}});
  EXPECT_LT(scored[0].value, 1);
  EXPECT_TRUE(scored[0].correct);
  EXPECT_FALSE(scored[1].correct);
}

// A penalty for length or truncation is for training; whether an answer is right is another matter.
TEST(Rewards, ACorrectAnswerIsCorrectHoweverItsRewardIsShaped) {
  RewardOptions options;
  options.weights = {{"last_number", 1}, {"length_penalty", 0.5}, {"format", 0.5}};
  options.format = "#.*";
  options.length_hard_tokens = 4;
  options.truncated = TruncatedPolicy::kPenalise;
  auto rewards = RewardFunction::Create(options);
  ASSERT_THAT(rewards, IsOk());
  const auto scored = (*rewards)->Score({
      {.text = "so 12", .answer = "12", .num_tokens = 90, .truncated = true},
      {.text = "# 13", .answer = "12", .num_tokens = 1},
      {.text = "# 12", .answer = "12", .num_tokens = 1},
      {.text = "12", .answer = "none"},
  });
  EXPECT_DOUBLE_EQ(scored[0].value, 0);  // 1 - 0.5 - 0.5
  EXPECT_TRUE(scored[0].correct);
  EXPECT_DOUBLE_EQ(scored[1].value,
                   0.375);  // 0.5 for the format, - 0.5 * 1/4 for one token of four
  EXPECT_FALSE(scored[1].correct);
  EXPECT_TRUE(scored[2].correct);
  EXPECT_FALSE(scored[3].correct) << "there is no reward";
}

TEST(Rewards, WhereNoComponentJudgesTheAnswerTheFormatDecides) {
  RewardOptions options;
  options.weights = {{"format", 1}};
  options.format = "#.*";
  auto rewards = RewardFunction::Create(options);
  ASSERT_THAT(rewards, IsOk());
  EXPECT_TRUE((*rewards)->Score({{.text = "# a"}})[0].correct);
  EXPECT_FALSE((*rewards)->Score({{.text = "a"}})[0].correct);
}

TEST(Rewards, AHeldOutComponentIsMeasuredAndNoPartOfTheReward) {
  RewardOptions options;
  options.weights = {{"length_penalty", 1}};
  options.length_hard_tokens = 4;
  options.gold = {"exact_match", "any_number"};
  auto rewards = RewardFunction::Create(options);
  ASSERT_THAT(rewards, IsOk());
  const auto scored = (*rewards)->Score({{.text = "12", .answer = "12", .num_tokens = 2},
                                         {.text = "or 12", .answer = "12", .num_tokens = 2},
                                         {.text = "12", .answer = "twelve", .num_tokens = 2}});
  EXPECT_DOUBLE_EQ(scored[0].value, -0.5);
  EXPECT_DOUBLE_EQ(scored[1].value, -0.5) << "the same: gold has no weight";
  EXPECT_DOUBLE_EQ(scored[0].gold.value(), 2);
  EXPECT_DOUBLE_EQ(scored[1].gold.value(), 1);
  EXPECT_THAT(scored[1].parts,
              ElementsAre(std::pair("length_penalty", -0.5), std::pair("exact_match", 0.0),
                          std::pair("any_number", 1.0)));
  EXPECT_TRUE(scored[0].correct) << "no component with a weight judges the answer, so gold does";
  EXPECT_FALSE(scored[2].gold.has_value()) << "any_number cannot read the answer";
  EXPECT_THAT(scored[2].mask_reason, IsEmpty()) << "it is trained all the same";
}

TEST(Rewards, AComponentIsTrainedOnOrHeldOut) {
  RewardOptions options;
  options.gold = {"number_answer"};
  EXPECT_THAT(RewardFunction::Create(options).status(),
              FailsWith(absl::StatusCode::kInvalidArgument,
                        "reward.gold names number_answer, which reward.weights trains on"));
  options.gold = {"exact_match", "exact_match"};
  EXPECT_THAT(RewardFunction::Create(options).status(),
              FailsWith(absl::StatusCode::kInvalidArgument, "names exact_match twice"));
  options.gold = {"golden"};
  EXPECT_THAT(RewardFunction::Create(options).status(),
              FailsWith(absl::StatusCode::kInvalidArgument, "reward.gold: no component 'golden'"));
}

TEST(Rewards, AModelThatNobodyLoadedMasksAndIsNeverZero) {
  RewardOptions options;
  options.weights = {{"model", 1}};
  EXPECT_THAT(RewardFunction::Create(options).status(),
              FailsWith(absl::StatusCode::kInvalidArgument, "reward.model.paths is empty"));
  options.model.paths = {"/somewhere"};
  auto rewards = RewardFunction::Create(options);
  ASSERT_THAT(rewards, IsOk());
  EXPECT_THAT((*rewards)->Score({{.text = "a"}})[0].mask_reason,
              HasSubstr("reward_failed: model: this program loads no reward model"));
}

TEST(Rewards, AComponentOfWeightZeroIsMeasuredAndMasksNothingWhereItFails) {
  RewardOptions options;
  options.weights = {{"exact_match", 1}, {"gsm8k", 0}};
  auto rewards = RewardFunction::Create(options);
  ASSERT_THAT(rewards, IsOk());
  const auto failed = (*rewards)->Score({{.text = "none", .answer = "none"}});
  EXPECT_THAT(failed[0].mask_reason, IsEmpty()) << "the answer holds no number";
  EXPECT_DOUBLE_EQ(failed[0].value, 1);
  EXPECT_THAT(failed[0].parts, ElementsAre(std::pair("exact_match", 1.0)));
  const auto measured = (*rewards)->Score({{.text = "so #### 7", .answer = "7"}});
  EXPECT_DOUBLE_EQ(measured[0].value, 0);
  EXPECT_THAT(measured[0].parts,
              ElementsAre(std::pair("exact_match", 0.0), std::pair("gsm8k", 1.0)));
}

TEST(Rewards, CapsActBeforeWeightsAndOnTheWholeValue) {
  RewardOptions options;
  options.weights = {{"length_penalty", 2}};
  options.length_hard_tokens = 4;
  options.cap_min = {{"length_penalty", -0.75}};
  options.cap_max = {{"length_penalty", -0.25}};
  auto rewards = RewardFunction::Create(options);
  ASSERT_THAT(rewards, IsOk());
  const auto scored = (*rewards)->Score({{.num_tokens = 0}, {.num_tokens = 2}, {.num_tokens = 4}});
  EXPECT_DOUBLE_EQ(scored[0].value, -0.5);
  EXPECT_DOUBLE_EQ(scored[1].value, -1);
  EXPECT_DOUBLE_EQ(scored[2].value, -1.5);
  EXPECT_THAT(scored[2].parts, ElementsAre(std::pair("length_penalty", -0.75)));
}

TEST(Rewards, AFiniteRewardThatNoAdvantageCanBeMadeOfMasksUnlessACapLimitsIt) {
  RewardOptions options;
  options.weights = {{"length_penalty", 1}};
  options.length_hard_tokens = 4;
  options.cap_min = {{"length_penalty", 1e39}};
  const auto scored = RewardFunction::Create(options).value()->Score({{.num_tokens = 4}});
  EXPECT_EQ(scored[0].mask_reason,
            "reward_failed: length_penalty: a reward of 1e+39 is beyond 1e+15; reward.cap_min and "
            "cap_max limit it");
  options.cap_min = {{"length_penalty", 1e15}};
  EXPECT_EQ(RewardFunction::Create(options).value()->Score({{.num_tokens = 4}})[0].mask_reason, "");
}

TEST(Rewards, ANormalisedComponentCountsByItsDistanceFromTheGroup) {
  RewardOptions options;
  options.weights = {{"exact_match", 3}, {"any_number", 1}};
  options.normalise = {"exact_match"};
  auto rewards = RewardFunction::Create(options);
  ASSERT_THAT(rewards, IsOk());
  const auto scored = (*rewards)->Score({{.text = "12", .answer = "12"}, {.answer = "12"}});
  // 1 and 0: mean 1/2, deviation of a sample sqrt(1/2).
  const double one = 0.5 / (std::sqrt(0.5) + 1e-4);
  EXPECT_DOUBLE_EQ(scored[0].value, 3 * one + 1);
  EXPECT_DOUBLE_EQ(scored[1].value, -3 * one);
  EXPECT_THAT(scored[0].parts,
              ElementsAre(std::pair("exact_match", 1.0), std::pair("any_number", 1.0)));
  EXPECT_TRUE(scored[0].correct) << "by the values themselves";
  EXPECT_FALSE(scored[1].correct);
}

TEST(NormaliseInGroup, LeavesFailuresOutAndMakesEqualValuesZero) {
  const RewardAnswer failed = absl::InternalError("none");
  const auto value = [](double x) { return RewardAnswer(ExternalAnswer{.value = x}); };
  EXPECT_THAT(NormaliseInGroup({value(5), value(5), failed}), ElementsAre(0, 0, 0));
  EXPECT_THAT(NormaliseInGroup({value(5)}), ElementsAre(0));
  const auto normalised = NormaliseInGroup({value(1), failed, value(3)});
  EXPECT_DOUBLE_EQ(normalised[0], -1 / (std::sqrt(2.0) + 1e-4));
  EXPECT_DOUBLE_EQ(normalised[1], 0);
  EXPECT_DOUBLE_EQ(normalised[2], 1 / (std::sqrt(2.0) + 1e-4));
}

TEST(Rewards, RepetitionAndDiversityShapeTheRewardAndDoNotJudge) {
  RewardOptions options;
  options.weights = {{"repetition", 1}, {"diversity", 0.5}, {"exact_match", 1}};
  options.ngram_words = 1;
  auto rewards = RewardFunction::Create(options);
  ASSERT_THAT(rewards, IsOk());
  const auto scored = (*rewards)->Score({{.text = "a a", .answer = "x"}, {.text = "b"}});
  EXPECT_DOUBLE_EQ(scored[0].value, -0.5 + 0.5 * 1);
  EXPECT_DOUBLE_EQ(scored[1].value, 0.5);
  EXPECT_FALSE(scored[0].correct);
}

TEST(Rewards, CapsOfUnknownComponentsOrInTheWrongOrderAreRefused) {
  RewardOptions options;
  options.cap_max = {{"juge", 1}};
  EXPECT_THAT(RewardFunction::Create(options).status(),
              FailsWith(absl::StatusCode::kInvalidArgument, "reward.cap_max: no component 'juge'"));
  options.cap_max = {{"gsm8k", 0}};
  options.cap_min = {{"gsm8k", 1}};
  EXPECT_THAT(RewardFunction::Create(options).status(),
              FailsWith(absl::StatusCode::kInvalidArgument, "cap_min of gsm8k is 1, above"));
  options.cap_min = {};
  options.cache = {.entries = 0, .file = "answers"};
  EXPECT_THAT(
      RewardFunction::Create(options).status(),
      FailsWith(absl::StatusCode::kInvalidArgument, "file needs reward.cache.entries above 0"));
  options.cache = {};
  options.normalise = {"all"};
  EXPECT_THAT(
      RewardFunction::Create(options).status(),
      FailsWith(absl::StatusCode::kInvalidArgument, "reward.normalise: no component 'all'"));
}

// A worker in Python whose `body` handles one parsed request `r`.
class SubprocessTest : public ::testing::Test {
 protected:
  std::vector<Reward> Run(const std::string& body, const std::vector<std::string>& texts,
                          double timeout = 20) {
    const std::string script = directory_ / "worker.py";
    EXPECT_THAT(WriteFileAtomically(script,
                                    "import sys, json, os, time\n"
                                    "for line in sys.stdin:\n"
                                    "  r = json.loads(line)\n  " +
                                        body +
                                        "\n"
                                        "  sys.stdout.flush()\n"),
                IsOk());
    RewardOptions options;
    options.weights = {{"subprocess", 1}};
    options.subprocess = {.command = {TANDEM_PYTHON, script}, .timeout_seconds = timeout};
    rewards_ = *RewardFunction::Create(options);
    std::vector<RewardInput> inputs;
    for (const std::string& text : texts) {
      inputs.push_back({.text = text, .answer = "a", .source_json = "{\"k\":3}"});
    }
    return rewards_->Score(inputs);
  }

  TempDir directory_;
  std::unique_ptr<RewardFunction> rewards_;
};

TEST_F(SubprocessTest, ScoresByJsonLines) {
  const auto scored =
      Run("print(json.dumps({'id': r['id'], 'reward': len(r['completion']) + r['source']['k']}))",
          {"ab", "abcd"});
  EXPECT_DOUBLE_EQ(scored[0].value, 5);
  EXPECT_DOUBLE_EQ(scored[1].value, 7);
}

TEST_F(SubprocessTest, ACrashIsRestartedAndOnlyThatCompletionIsMasked) {
  const auto scored = Run(
      "r['completion'] == 'crash' and os._exit(1); print(json.dumps({'id': r['id'], 'reward': 1}))",
      {"a", "crash", "b"});
  EXPECT_DOUBLE_EQ(scored[0].value, 1);
  EXPECT_THAT(scored[1].mask_reason, HasSubstr("reward_failed: subprocess: reward program ended"));
  EXPECT_DOUBLE_EQ(scored[2].value, 1);
  EXPECT_THAT(scored[2].mask_reason, IsEmpty());
}

TEST_F(SubprocessTest, GarbageNanAndItsOwnErrorsMask) {
  EXPECT_THAT(Run("print('hello')", {"a"})[0].mask_reason, HasSubstr("wrote 'hello'"));
  EXPECT_THAT(Run("print('{\"id\":%d,\"reward\":NaN}' % r['id'])", {"a"})[0].mask_reason,
              HasSubstr("reward_failed"));
  EXPECT_THAT(Run("print(json.dumps({'id': r['id'], 'error': 'no idea'}))", {"a"})[0].mask_reason,
              HasSubstr("no idea"));
}

TEST_F(SubprocessTest, AnAnswerThatDoesNotComeMasks) {
  EXPECT_THAT(Run("sys.stdin.read()", {"a"}, 0.2)[0].mask_reason, HasSubstr("within 0.2 s"));
}

TEST_F(SubprocessTest, ALineWithoutEndMasks) {
  EXPECT_THAT(Run("print('x' * 2000000)", {"a"})[0].mask_reason,
              HasSubstr("wrote a line over 1 MiB"));
}

TEST_F(SubprocessTest, AProgramThatIsNotThereMasks) {
  RewardOptions options;
  options.weights = {{"subprocess", 1}};
  options.subprocess.command = {"/nowhere/at/all"};
  auto rewards = RewardFunction::Create(options);
  ASSERT_THAT(rewards, IsOk());
  EXPECT_THAT((*rewards)->Score({{.text = "a"}})[0].mask_reason,
              HasSubstr("cannot start reward program '/nowhere/at/all'"));
}

}  // namespace
}  // namespace tandem::trainer
