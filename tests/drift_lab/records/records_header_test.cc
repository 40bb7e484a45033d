#include "drift_lab/records/records_header.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "tests/support/status_matchers.h"

namespace tandem::drift {
namespace {

using ::tandem::testing::FailsWith;
using ::tandem::testing::IsOk;
using ::testing::ElementsAre;

constexpr char kFullHeader[] =
    R"({"tandem_capture":3,"model":"m","tokenizer":"t","vocab_size":100,"eos_token_ids":[2,7],)"
    R"("created_by":"me","created_at":"2026-01-01T00:00:00Z",)"
    R"("behaviour":{"engine":"vllm","engine_version":"0.32.0","dtype":"bfloat16","weights":"w",)"
    R"("logprobs":"processed","temperature":0.7,"top_k":-1,"top_p":0.9,"min_p":0.05,)"
    R"("repetition_penalty":1.1,"frequency_penalty":-0.5,"presence_penalty":0.5,"min_tokens":4},)"
    R"("proximal":{"engine":"fsdp","policy":"moving","temperature":1.0},)"
    R"("columns":{"behaviour_logprobs":{"from":"logprobs","transform":"none","digits":"decimal:4"}}})";

TEST(RecordsHeader, ReadsEveryFieldAndWritesItBack) {
  const absl::StatusOr<RecordsHeader> header = ParseHeader(kFullHeader);
  ASSERT_THAT(header, IsOk());
  EXPECT_EQ(header->vocab_size, 100);
  EXPECT_THAT(header->eos_token_ids, ElementsAre(2, 7));
  EXPECT_EQ(header->behaviour.temperature, 0.7);
  EXPECT_EQ(header->behaviour.top_k, -1);
  EXPECT_EQ(header->proximal.policy, "moving");
  EXPECT_EQ(header->proximal.top_p, std::nullopt);
  EXPECT_EQ(header->columns.at("behaviour_logprobs").digits, "decimal:4");
  EXPECT_EQ(HeaderJson(*header), kFullHeader);
}

TEST(RecordsHeader, NullIsAbsentAndExtraIsNotLookedAt) {
  const absl::StatusOr<RecordsHeader> header = ParseHeader(
      R"({"tandem_capture": 3, "vocab_size": null, "behaviour": {"top_p": null}, "extra": {"a": NaN}})");
  ASSERT_THAT(header, IsOk());
  EXPECT_EQ(HeaderJson(*header), R"({"tandem_capture":3})");
}

TEST(RecordsHeader, SaysFieldExpectedAndFound) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {R"({"token_ids": [1]})", "tandem_capture: expected the header as the first line"},
      {R"({"tandem_capture": 2})",
       "tandem_capture: expected 3, the format that this program reads, found 2"},
      {R"({"tandem_capture": "3"})", "found \"3\""},
      {R"({"tandem_capture": 3)", "on one line, found not JSON at byte"},
      {"[]", "expected the header, a JSON object, found []"},
      {R"({"tandem_capture": 3, "modle": "x"})",
       "modle: expected a field of docs/records.md, found "
       "another; did you mean model?"},
      {R"({"tandem_capture": 3, "vocab_size": 0})",
       "vocab_size: expected a whole number of at least 1, found 0"},
      {R"({"tandem_capture": 3, "vocab_size": 1.5})", "found 1.5"},
      {R"({"tandem_capture": 3, "eos_token_ids": 2})",
       "eos_token_ids: expected a list of token ids, found 2"},
      {R"({"tandem_capture": 3, "behaviour": "vllm"})",
       "behaviour: expected an object, found \"vllm\""},
      {R"({"tandem_capture": 3, "behaviour": {"temperature": "0.7"}})",
       "behaviour.temperature: expected a number of at least 0, found \"0.7\""},
      {R"({"tandem_capture": 3, "behaviour": {"temperature": NaN}})", "found \"NaN\""},
      {R"({"tandem_capture": 3, "behaviour": {"temprature": 1}})",
       "behaviour.temprature: expected a field of docs/records.md, found another; did you mean "
       "temperature?"},
      {R"({"tandem_capture": 3, "behaviour": {"policy": "proximal"}})",
       "behaviour.policy: expected a field of docs/records.md, found another (what is your own "
       "belongs into `extra` of the header); only `proximal` has it"},
      {R"({"tandem_capture": 3, "temperature": 1})",
       "temperature: expected a field of docs/records.md, found another (what is your own belongs "
       "into `extra`); it belongs into the header, in `behaviour` or `proximal`"},
      {R"({"tandem_capture": 3, "logprobs": "raw"})",
       "it belongs into `behaviour` or `proximal`, and is \"raw\" or \"processed\""},
      {R"({"tandem_capture": 3, "proximal": {"policy": "old"}})",
       "proximal.policy: expected \"proximal\" or \"moving\", found \"old\""},
      {R"({"tandem_capture": 3, "proximal": {"logprobs": 1}})",
       "proximal.logprobs: expected \"raw\" or \"processed\", found 1"},
      {R"({"tandem_capture": 3, "columns": {"logprobs": {}}})",
       "columns.logprobs: expected a field of docs/records.md, found another (what is your own "
       "belongs into `extra` of the header); the columns of the two sides are behaviour_logprobs"},
      {R"({"tandem_capture": 3, "columns": {"advantages": {"from": 1}}})",
       "columns.advantages.from: expected a text, found 1"},
      {std::string(200, '['), "nested at most 100 deep"},
  };
  for (const auto& [json, message] : cases) {
    EXPECT_THAT(ParseHeader(json), FailsWith(absl::StatusCode::kInvalidArgument, message)) << json;
  }
}

}  // namespace
}  // namespace tandem::drift
