#include "drift_lab/records/json_rows.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/status_matchers.h"

namespace tandem::drift {
namespace {

using ::tandem::testing::FailsWith;
using ::tandem::testing::IsOk;
using ::testing::ElementsAre;

constexpr auto kBadRow = absl::StatusCode::kInvalidArgument;

TEST(JsonRows, ReadsEveryField) {
  RecordRow row;
  ASSERT_THAT(ParseRow(R"({"token_ids": [5, 6, 7], "prompt_length": 1, "loss_mask": [0, true, 1.0],
      "behaviour_logprobs": [null, -0.5, -1e-3], "behaviour_top_ids": [null, [6, 1], []],
      "behaviour_top_logprobs": [[], [-0.5, -0.9], []], "version_spans": [[3, 1], [4, 1]],
      "weight_version": null, "proximal_version": 4, "step": 9.0, "group_id": 17, "row_id": "r",
      "finish_reason": "st\u00f6p", "stop_token_kept": false, "reward": -1.5, "advantage": 0.25,
      "prompt_text": "a\n", "completion_text": "b", "extra": {"any": [{"thing": NaN}]}})",
                       row),
              IsOk());
  EXPECT_THAT(row.token_ids, ElementsAre(5, 6, 7));
  EXPECT_EQ(row.prompt_length, 1);
  EXPECT_THAT(row.loss_mask, ElementsAre(0, 1, 1));
  const std::vector<float>& logprobs = row.column(Column::kBehaviour);
  ASSERT_EQ(logprobs.size(), 3);
  EXPECT_FALSE(HasValue(logprobs[0]));
  EXPECT_EQ(logprobs[1], -0.5f);
  EXPECT_EQ(logprobs[2], -0.001f);
  EXPECT_THAT(row.behaviour_top.num_ids, ElementsAre(0, 2, 0));
  EXPECT_THAT(row.behaviour_top.ids, ElementsAre(6, 1));
  EXPECT_THAT(row.behaviour_top.logprobs, ElementsAre(-0.5f, -0.9f));
  ASSERT_EQ(row.facts.spans.size(), 2);
  EXPECT_EQ(row.facts.spans[1].version, 4);
  EXPECT_EQ(row.weight_version, std::nullopt);
  EXPECT_EQ(row.facts.proximal_version, 4);
  EXPECT_EQ(row.facts.step, 9);
  EXPECT_EQ(row.facts.group_id, "17");
  EXPECT_EQ(row.facts.row_id, "r");
  EXPECT_EQ(row.facts.finish_reason, "st\xc3\xb6p");
  EXPECT_EQ(row.facts.stop_token_kept, false);
  EXPECT_EQ(row.facts.reward, -1.5);
  EXPECT_EQ(row.facts.advantage, 0.25);
  EXPECT_EQ(row.facts.prompt_text, "a\n");
  EXPECT_EQ(row.facts.completion_text, "b");
}

TEST(JsonRows, TakesNumbersThatJsonDoesNotHaveAsTextsAndBare) {
  RecordRow row;
  ASSERT_THAT(ParseRow(R"({"behaviour_logprobs": ["NaN", NaN, "Infinity", Infinity, "-Infinity",
                                                  -Infinity, -1e400, null]})",
                       row),
              IsOk());
  const std::vector<float>& values = row.column(Column::kBehaviour);
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  ASSERT_EQ(values.size(), 8);
  EXPECT_TRUE(std::isnan(values[0]) && HasValue(values[0]));
  EXPECT_TRUE(std::isnan(values[1]) && HasValue(values[1]));
  EXPECT_EQ(values[2], kInfinity);
  EXPECT_EQ(values[3], kInfinity);
  EXPECT_EQ(values[4], -kInfinity);
  EXPECT_EQ(values[5], -kInfinity);
  EXPECT_EQ(values[6], -kInfinity);
  EXPECT_FALSE(HasValue(values[7]));
}

TEST(JsonRows, AnotherRowReplacesTheFormerOne) {
  RecordRow row;
  ASSERT_THAT(ParseRow(R"({"token_ids": [1], "step": 2, "loss_mask": [1]})", row), IsOk());
  ASSERT_THAT(ParseRow(R"({"token_ids": [3]})", row), IsOk());
  EXPECT_THAT(row.token_ids, ElementsAre(3));
  EXPECT_TRUE(row.loss_mask.empty());
  EXPECT_EQ(row.facts.step, std::nullopt);
}

TEST(JsonRows, SaysFieldExpectedAndFound) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"", "expected a JSON object, one row a line, found the end (is the file cut short?)"},
      {"[1]", "expected a JSON object, one row a line, found [1] at byte 1"},
      {"{} {}", "expected the end of the row, found {} at byte 4"},
      {R"({"token_ids": [1, 2)", "token_ids: expected ',' or ']', found the end"},
      {R"({"token_ids": null})", "token_ids: expected a list of ids, found null at byte 15"},
      {R"({"token_ids": [1, 2.5]})",
       "token_ids: expected a token id (a whole number below 2^31), "
       "found 2.5 at byte 19"},
      {R"({"token_ids": [4294967296]})", "found 4294967296 at byte 16"},
      {R"({"token_ids": [01]})", "found 01 at byte 16"},
      {R"({"behaviour_logprobs": [-0.5, "x"]})",
       "behaviour_logprobs: expected a number, null, \"NaN\", \"Infinity\" or \"-Infinity\", found "
       "\"x\" at byte 31"},
      {R"({"behaviour_logprobs": [-.5]})", "found -.5 at byte 25"},
      {R"({"behaviour_logprobs": [-1.]})", "found -1. at byte 25"},
      {R"({"proximal_logprobs": []})",
       "proximal_logprobs: expected one element for each of token_ids, found an empty list"},
      {R"({"loss_mask": [0, 2]})", "loss_mask: expected 0 or 1, found 2"},
      {R"({"version_spans": [{"version": 1}]})",
       "version_spans: expected [version, num_tokens] of whole numbers, found {\"version\": 1}]}"},
      {R"({"step": "3"})", "step: expected a whole number, found \"3\" at byte 10"},
      {R"({"step": true})", "step: expected a whole number, found true"},
      {R"({"row_id": 7})", "row_id: expected a text in UTF-8, found 7"},
      {R"({"stop_token_kept": 1})", "stop_token_kept: expected true or false, found 1"},
      {R"({"extra": 1})", "extra: expected an object, nested at most 100 deep, found 1"},
      {R"({"step": 1, "step": 1})", "step: expected once in a row, found twice"},
      {R"({"step" 1})", "expected ':' after the name of a field, found 1"},
      {R"({"step": 1,})", "expected the name of a field, found }"},
      {R"({'step': 1})", "expected the name of a field, found 'step':"},
      {"{\"row_id\": \"\xff\"}", "row_id: expected a text in UTF-8"},
  };
  for (const auto& [json, message] : cases) {
    RecordRow row;
    EXPECT_THAT(ParseRow(json, row), FailsWith(kBadRow, message)) << json;
  }
}

TEST(JsonRows, RefusesUnknownFieldsWithTheNearestName) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"behavior_logprobs", "did you mean behaviour_logprobs?"},
      {"prompt_len", "did you mean prompt_length?"},
      {"old_log_probs", "did you mean proximal_logprobs?"},
      {"rollout_log_probs", "did you mean behaviour_logprobs?"},
      {"response_mask", "did you mean loss_mask?"},
      {"anything",
       "anything: expected a field of docs/records.md, found another (what is your own"},
  };
  for (const auto& [name, message] : cases) {
    RecordRow row;
    EXPECT_THAT(ParseRow("{\"" + name + "\": [1]}", row), FailsWith(kBadRow, message));
  }
}

TEST(JsonRows, SaysWhereANameBelongsThatIsNoFieldOfARow) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"logprobs",
       "the two sides are behaviour_logprobs (of the engine that drew the tokens) and "},
      {"old_logprobs", "the two sides are behaviour_logprobs"},
      {"entropy", "behaviour_entropy and proximal_entropy"},
      {"top_logprobs", "proximal_top_ids with proximal_top_logprobs"},
      {"completion_ids", "token_ids has the ids of prompt and completion"},
      {"temperature", "it belongs into the header, in `behaviour` or `proximal`"},
      {"min_p", "it belongs into the header, in `behaviour` or `proximal`"},
      {"vocab_size", "it belongs into the header"},
      {"tandem_capture", "it begins a header, and a file has one: were two joined?"},
  };
  for (const auto& [name, message] : cases) {
    RecordRow row;
    EXPECT_THAT(ParseRow("{\"" + name + "\": [1]}", row), FailsWith(kBadRow, message));
  }
}

TEST(JsonRows, DeepNestingIsRefusedWithoutRecursion) {
  RecordRow row;
  const std::string deep(1000000, '[');
  EXPECT_THAT(ParseRow("{\"extra\": {\"a\": " + deep + std::string(1000000, ']') + "}}", row),
              FailsWith(kBadRow, "nested at most 100 deep"));
  EXPECT_THAT(ParseRow("{\"token_ids\": " + deep, row), FailsWith(kBadRow, "token_ids"));
}

}  // namespace
}  // namespace tandem::drift
