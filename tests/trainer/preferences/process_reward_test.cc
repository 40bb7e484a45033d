#include "trainer/preferences/process_reward.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "tests/support/status_matchers.h"
#include "tests/trainer/preferences/central_difference.h"

namespace tandem::trainer {
namespace {

using ::tandem::testing::CentralDifference;
using ::tandem::testing::FailsWith;
using ::tandem::testing::IsOk;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

// The texts of the steps.
std::vector<std::string> Steps(const StepOptions& options, std::string_view text) {
  const auto splitter = StepSplitter::Create(options);
  EXPECT_THAT(splitter, IsOk());
  const auto steps = splitter->Split(text);
  EXPECT_THAT(steps, IsOk());
  std::vector<std::string> texts;
  for (const StepRange& step : *steps) {
    texts.emplace_back(text.substr(step.begin, step.end - step.begin));
  }
  return texts;
}

TEST(StepSplitter, EndsAStepAtALineBreakAndTheBlankLinesAfterIt) {
  EXPECT_THAT(Steps({}, "2 + 2 = 4\n\n  so 4\n \t\nDone"),
              ElementsAre("2 + 2 = 4\n\n", "  so 4\n \t\n", "Done"));
  EXPECT_THAT(Steps({}, "\n\nfirst\nlast\n"), ElementsAre("\n\nfirst\n", "last\n"));
  EXPECT_THAT(Steps({}, "one"), ElementsAre("one"));
  EXPECT_THAT(Steps({}, " \n\n "), IsEmpty());
  EXPECT_THAT(Steps({}, ""), IsEmpty());
}

TEST(StepSplitter, EndsAStepAfterAMarkerAndKeepsTheRest) {
  const StepOptions options{StepBoundary::kMarker, "[s]"};
  EXPECT_THAT(Steps(options, "a[s]b [s] c"), ElementsAre("a[s]", "b [s]", " c"));
  EXPECT_THAT(Steps(options, "a[s][s] \n[s]b[s] "), ElementsAre("a[s][s] \n[s]", "b[s] "));
  EXPECT_THAT(Steps(options, "[s]a"), ElementsAre("[s]a"));
}

TEST(StepSplitter, EndsAStepAtAMatch) {
  const StepOptions options{StepBoundary::kRegex, R"([.!?]\s+)"};
  EXPECT_THAT(Steps(options, "Pi is 3.14. So?  Yes!"),
              ElementsAre("Pi is 3.14. ", "So?  ", "Yes!"));
}

TEST(StepSplitter, AMatchOfNothingEndsNoStep) {
  EXPECT_THAT(Steps({StepBoundary::kRegex, R"(\b)"}, "two words"), ElementsAre("two words"));
}

TEST(StepSplitter, TakesWhatLiesBetweenTags) {
  const StepOptions options{StepBoundary::kTags, "step"};
  EXPECT_THAT(Steps(options, "So: <step>a</step>\n<step>b\n</step> end"), ElementsAre("a", "b\n"));
  EXPECT_THAT(Steps(options, "<step>a</step><step>cut o"), ElementsAre("a", "cut o"));
  EXPECT_THAT(Steps(options, "no tags"), IsEmpty());
}

TEST(StepSplitter, NamesTheByteOfATagThatIsOutOfPlace) {
  const auto splitter = StepSplitter::Create({StepBoundary::kTags, "step"});
  ASSERT_THAT(splitter, IsOk());
  EXPECT_THAT(splitter->Split("a</step><step>b</step>"),
              FailsWith(absl::StatusCode::kInvalidArgument, "byte 1: </step> without <step>"));
  EXPECT_THAT(splitter->Split("<step>a<step>b</step>"),
              FailsWith(absl::StatusCode::kInvalidArgument,
                        "byte 7: <step> inside the step that byte 0 opened"));
}

TEST(StepSplitter, StepsCoverTheTextWithoutAGap) {
  const std::string text = "\n a\n\nb. c!\n\n\nd\n";
  for (const StepOptions& options : {StepOptions{}, StepOptions{StepBoundary::kMarker, "\n"},
                                     StepOptions{StepBoundary::kRegex, "[.!]|\n"}}) {
    std::string joined;
    for (const std::string& step : Steps(options, text)) joined += step;
    EXPECT_EQ(joined, text);
  }
}

TEST(StepSplitter, RefusesAPatternThatCannotWork) {
  const auto refused = [](const StepOptions& options, const char* message) {
    EXPECT_THAT(StepSplitter::Create(options).status(),
                FailsWith(absl::StatusCode::kInvalidArgument, message));
  };
  refused({StepBoundary::kRegex, "("}, "not a regular expression of RE2: missing )");
  refused({StepBoundary::kRegex, "x*"}, "matches the empty text");
  refused({StepBoundary::kMarker, ""}, "pattern is empty");
  refused({StepBoundary::kNewline, "x"}, "boundary newline has no pattern");
}

TEST(StepOptions, AreReadByName) {
  StepOptions options;
  OptionBinder binder;
  BindOptions(binder, options);
  ASSERT_THAT(binder.LoadString("{boundary: tags, pattern: think}", "test"), IsOk());
  EXPECT_EQ(options.boundary, StepBoundary::kTags);
  EXPECT_EQ(options.pattern, "think");
}

TEST(StepLoss, IsBinaryCrossEntropyWithHardAndSoftLabels) {
  const std::vector<double> logits = {1, 1, 0, -100}, labels = {1, 0, 0.25, 1};
  const StepLoss loss = ComputeStepLoss(logits, labels);
  EXPECT_NEAR(loss.value[0], 0.3132616875, 1e-9);
  EXPECT_NEAR(loss.value[1], 1.3132616875, 1e-9);
  EXPECT_NEAR(loss.value[2], std::log(2.0), 1e-12);
  EXPECT_NEAR(loss.value[3], 100, 1e-9);
  EXPECT_NEAR(loss.slope[0], -0.2689414214, 1e-9);
  EXPECT_NEAR(loss.slope[1], 0.7310585786, 1e-9);
  EXPECT_NEAR(loss.slope[2], 0.25, 1e-12);
  EXPECT_NEAR(loss.slope[3], -1, 1e-12);
}

TEST(StepLoss, HasTheSlopesOfItsValue) {
  const std::vector<double> labels = {0.3};
  const auto value = [&](const std::vector<double>& z) {
    return ComputeStepLoss(z, labels).value[0];
  };
  for (const double z : {-3.0, 0.1, 2.0}) {
    const std::vector<double> at = {z};
    EXPECT_NEAR(ComputeStepLoss(at, labels).slope[0], CentralDifference(value, at, 0), 1e-8);
  }
}

TEST(AggregateSteps, WorksOutEveryAggregationByHand) {
  const std::vector<double> scores = {0.5, 0.25, 0.75};
  EXPECT_EQ(AggregateSteps(scores, StepAggregation::kMin), 0.25);
  EXPECT_EQ(AggregateSteps(scores, StepAggregation::kSum), 1.5);
  EXPECT_EQ(AggregateSteps(scores, StepAggregation::kProduct), 0.09375);
  EXPECT_EQ(AggregateSteps(scores, StepAggregation::kLast), 0.75);
  EXPECT_EQ(AggregateSteps(scores, StepAggregation::kMean), 0.5);
  EXPECT_TRUE(std::isnan(AggregateSteps({}, StepAggregation::kMean)));
}

}  // namespace
}  // namespace tandem::trainer
