#include "common/base/foreign_json.h"

#include <gtest/gtest.h>

namespace tandem {
namespace {

TEST(JsonFault, SaysWhereATextEndsToBeJson) {
  EXPECT_EQ(JsonFault(R"({"a": 1,})"), "not JSON at byte 9");
  EXPECT_EQ(JsonFault(""), "not JSON at byte 1");
}

TEST(JsonFault, NamesNumbersThatJsonDoesNotHave) {
  const char* const kNaN = ": NaN and Infinity are no numbers of JSON; leave the field out";
  for (const char* const text : {R"({"margin": NaN})", R"({"margin":NaN})", R"([-Infinity])"}) {
    EXPECT_NE(JsonFault(text).find(kNaN), std::string::npos) << JsonFault(text);
  }
  EXPECT_EQ(JsonFault(R"({"a": 1e999})"), "not JSON: a number is too large for a double");
  EXPECT_EQ(JsonFault(R"({"a": Nothing})").find(kNaN), std::string::npos);
}

TEST(JsonFault, SaysWhichTextIsNotUtf8) {
  EXPECT_EQ(JsonFault("{\"a\": \"caf\xe9\"}"),
            "not JSON at byte 12: the text is not UTF-8 there; convert it to UTF-8");
}

TEST(NullForNonFinite, ReplacesWhatIsNoNumberOfJsonAndNothingElse) {
  EXPECT_EQ(NullForNonFinite(R"({"rewards": [0.0, NaN, -Infinity, 1e999, -1e-5, 12]})"),
            R"({"rewards": [0.0, null, null, null, -1e-5, 12]})");
  EXPECT_EQ(NullForNonFinite(R"({"error": "NaN \" Infinity 1e999", "a": true})"),
            R"({"error": "NaN \" Infinity 1e999", "a": true})");
  EXPECT_EQ(NullForNonFinite("Infinity"), "null");
  EXPECT_EQ(NullForNonFinite(""), "");
}

TEST(TextForNonFinite, KeepsWhichNumberItWas) {
  EXPECT_EQ(TextForNonFinite(R"([0.5, NaN, Infinity, -Infinity, 1e999, -1e999, "NaN", "\" NaN"])"),
            R"([0.5, "NaN", "Infinity", "-Infinity", "Infinity", "-Infinity", "NaN", "\" NaN"])");
}

}  // namespace
}  // namespace tandem
