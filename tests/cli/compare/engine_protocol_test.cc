#include "cli/compare/engine_protocol.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "tests/support/status_matchers.h"

namespace tandem::cli {
namespace {

using ::tandem::testing::FailsWith;
using ::tandem::testing::IsOk;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr auto kDataLoss = absl::StatusCode::kDataLoss;

TEST(EngineProtocolTest, WritesRequestsAsOneLine) {
  EXPECT_EQ(InfoRequest(1), "{\"id\":1,\"do\":\"info\"}\n");
  EXPECT_EQ(
      SampleRequest(2, {{1, 2}}, {.temperature = 0.5, .seed = 9, .raw = true}),
      "{\"id\":2,\"do\":\"sample\",\"prompts\":[[1,2]],\"n\":1,\"temperature\":0.5,\"top_k\":0,"
      "\"top_p\":1.0,\"max_new_tokens\":64,\"seed\":9,\"logprobs\":\"raw\"}\n");
  EXPECT_EQ(ScoreRequest(3, {{.token_ids = {1, 2}, .prompt_length = 1}}, 1),
            "{\"id\":3,\"do\":\"score\",\"rows\":[{\"token_ids\":[1,2],\"prompt_length\":1}],"
            "\"temperature\":1.0}\n");
}

TEST(EngineProtocolTest, ReadsWhatAnEngineIs) {
  const auto info = ReadInfo(
      R"({"id":1,"protocol":1,"engine":"vllm","version":"0.32","dtype":"bfloat16","can":["sample"]})",
      1);
  ASSERT_THAT(info, IsOk());
  EXPECT_EQ(info->engine, "vllm");
  EXPECT_FALSE(info->can_load_weights);
  EXPECT_THAT(ReadInfo(R"({"id":1,"protocol":2})", 1),
              FailsWith(kDataLoss, "protocol: expected 1"));
}

TEST(EngineProtocolTest, ReadsNumbersThatJsonDoesNotHave) {
  const auto completions = ReadCompletions(
      R"({"id":4,"completions":[{"prompt":0,"token_ids":[7,8],"logprobs":["-Infinity","NaN"],)"
      R"("entropies":[0.5,1],"finish_reason":"length"}]})",
      4, 1);
  ASSERT_THAT(completions, IsOk());
  const DrawnCompletion& one = completions->front();
  EXPECT_EQ(one.logprobs[0], -std::numeric_limits<float>::infinity());
  EXPECT_TRUE(std::isnan(one.logprobs[1]));
  EXPECT_THAT(one.entropies, ElementsAre(0.5f, 1.0f));
  EXPECT_THAT(one.raw_logprobs, IsEmpty());
}

TEST(EngineProtocolTest, NamesTheFieldOfAReplyThatBreaksIt) {
  const auto fails = [](const char* fields, const char* says) {
    const std::string line =
        std::string(R"({"id":4,"completions":[{"finish_reason":"stop",)") + fields + "}]}";
    EXPECT_THAT(ReadCompletions(line, 4, 2), FailsWith(kDataLoss, says));
  };
  fails(R"("prompt":2,"token_ids":[1],"logprobs":[0])", "prompt: expected an integer from 0 to 1");
  fails(R"("prompt":0,"token_ids":[],"logprobs":[])", "token_ids: expected at least one");
  fails(R"("prompt":0,"token_ids":[1],"logprobs":[0,0])", "logprobs: expected 1 numbers, found 2");
  fails(R"("prompt":0,"token_ids":[1],"logprobs":["x"])", "logprobs: expected a number");
  EXPECT_THAT(ReadCompletions(R"({"id":3})", 4, 1),
              FailsWith(kDataLoss, "id: expected 4, found 3"));
  EXPECT_THAT(ReadCompletions("hello", 4, 1),
              FailsWith(kDataLoss, "expected an object, found hello"));
}

TEST(EngineProtocolTest, WantsAScoreForEachTokenOfEachRow) {
  const std::vector<RowToScore> rows = {{.token_ids = {1, 2, 3}, .prompt_length = 1}};
  EXPECT_THAT(ReadScores(R"({"id":1,"rows":[{"logprobs":[-1,-2]}]})", 1, rows)->front().logprobs,
              ElementsAre(-1.0f, -2.0f));
  EXPECT_THAT(ReadScores(R"({"id":1,"rows":[]})", 1, rows),
              FailsWith(kDataLoss, "rows: expected 1, found 0"));
}

TEST(EngineProtocolTest, GivesErrorsTheCodesOfTheirKinds) {
  const auto code = [](const char* kind) {
    return ReadLoaded(std::string(R"({"id":1,"error":{"message":"no","kind":")") + kind + "\"}}", 1)
        .code();
  };
  EXPECT_EQ(code("invalid"), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code("unsupported"), absl::StatusCode::kUnimplemented);
  EXPECT_EQ(code("failed"), absl::StatusCode::kInternal);
}

}  // namespace
}  // namespace tandem::cli
