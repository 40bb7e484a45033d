#include "rollout_server/http/json_fields.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/status_matchers.h"

namespace tandem::rollout {
namespace {

using tandem::testing::FailsWith;
using ::testing::ElementsAre;
using ::testing::Optional;

constexpr absl::StatusCode kInvalid = absl::StatusCode::kInvalidArgument;

TEST(ParseBody, TakesObjectsAlone) {
  EXPECT_THAT(ParseBody(R"({"a": 1})"), tandem::testing::IsOk());
  EXPECT_THAT(ParseBody(""), FailsWith(kInvalid, "empty"));
  EXPECT_THAT(ParseBody("[1]"), FailsWith(kInvalid, "no JSON object"));
  EXPECT_THAT(ParseBody("{\"a\": NaN}"), FailsWith(kInvalid, "not JSON at byte"));
  EXPECT_THAT(ParseBody(std::string(100, '[')), FailsWith(kInvalid, "deeper than 64"));
}

TEST(JsonFields, ReadsValuesAndTakesANullForAMissingOne) {
  const Json json =
      Json::parse(R"({"n": 2.5, "i": 7, "f": true, "t": "x", "ids": [1, 2.0], "z": null})");
  JsonFields fields(json);
  EXPECT_THAT(fields.Number("n"), Optional(2.5));
  EXPECT_THAT(fields.Integer("i", 0, 10), Optional(7));
  EXPECT_THAT(fields.Flag("f"), Optional(true));
  EXPECT_THAT(fields.Text("t"), Optional(std::string("x")));
  EXPECT_THAT(fields.Ids("ids", 0, 9), Optional(ElementsAre(1, 2)));
  EXPECT_EQ(fields.Number("z"), std::nullopt);
  EXPECT_EQ(fields.Text("missing"), std::nullopt);
  EXPECT_THAT(fields.status(), tandem::testing::IsOk());
  EXPECT_TRUE(fields.Unknown().empty());
}

TEST(JsonFields, ANumberMayBeWrittenAsAText) {
  const Json json = Json::parse(R"({"n": "2.5", "i": "-7", "word": "seven", "list": "[1]"})");
  JsonFields fields(json);
  EXPECT_THAT(fields.Number("n"), Optional(2.5));
  EXPECT_THAT(fields.Integer("i", -9, 9), Optional(-7));
  EXPECT_THAT(fields.status(), tandem::testing::IsOk());
  EXPECT_EQ(fields.Integer("n", 0, 9), std::nullopt) << "no integer";
  EXPECT_EQ(fields.Number("word"), std::nullopt);
  EXPECT_EQ(fields.Number("list"), std::nullopt);
}

TEST(JsonFields, TheFirstWrongFieldIsNamedWithWhatCameAndWhatIsWanted) {
  const Json json = Json::parse(R"({"a": "x", "b": 1e300, "c": [1, -1]})");
  JsonFields fields(json, "sampling_params.");
  fields.Integer("b", 0, 9);
  fields.Number("a");
  EXPECT_THAT(fields.status(),
              FailsWith(kInvalid, "sampling_params.b is 1e+300, want an integer from 0 to 9"));
  EXPECT_EQ(ParamOf(fields.status()), "sampling_params.b");
  JsonFields others(json);
  others.Ids("c", 0, 9);
  EXPECT_THAT(others.status(), FailsWith(kInvalid, "c[1] is -1, want a token id from 0 to 9"));
  EXPECT_THAT(others.Unknown(), ElementsAre("a", "b"));
}

TEST(JsonFields, AnIntegerBeyond64BitsIsOutOfRange) {
  const Json json = Json::parse(R"({"a": 18446744073709551615, "b": 1e19})");
  JsonFields fields(json);
  EXPECT_EQ(fields.Integer("a", 0, int64_t{1} << 60), std::nullopt);
  EXPECT_EQ(fields.Integer("b", 0, int64_t{1} << 60), std::nullopt);
}

TEST(JsonFields, AFieldThatIsNotSupportedMayHaveAValueThatChangesNothing) {
  const Json json = Json::parse(R"({"a": 0, "b": 0.5})");
  const auto is_zero = [](const Json& value) { return value == 0; };
  JsonFields fields(json);
  fields.Unsupported("a", is_zero, "");
  fields.Unsupported("missing", is_zero, "");
  EXPECT_THAT(fields.status(), tandem::testing::IsOk());
  fields.Unsupported("b", is_zero, "it changes the log-probs");
  EXPECT_THAT(fields.status(),
              FailsWith(kInvalid, "b is 0.5: it is not supported here, since it changes"));
}

}  // namespace
}  // namespace tandem::rollout
