#include "common/observe/tracer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <sstream>

#include "common/files/file_system.h"
#include "tests/support/status_matchers.h"
#include "tests/support/temp_dir.h"

namespace tandem {
namespace {

using nlohmann::json;
using testing::IsOk;
using testing::TempDir;

std::vector<json> Lines(const std::string& path) {
  std::istringstream text(*ReadFile(path));
  std::vector<json> lines;
  for (std::string line; std::getline(text, line);) lines.push_back(json::parse(line));
  return lines;
}

TEST(TraceparentTest, GoesOutAndComesBackAsW3CHasIt) {
  const TraceContext context = {"4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"};
  const std::string header = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
  EXPECT_EQ(ToTraceparent(context), header);
  const auto read = ParseTraceparent(header);
  ASSERT_TRUE(read.has_value());
  EXPECT_EQ(read->trace_id, context.trace_id);
  EXPECT_EQ(read->span_id, context.span_id);
  EXPECT_EQ(ToTraceparent({}), "");
}

TEST(TraceparentTest, AMalformedHeaderIsNone) {
  for (const char* bad : {"", "00", "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7",
                          "ff-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
                          "00-4BF92F3577B34DA6A3CE929D0E0E4736-00f067aa0ba902b7-01",
                          "00-00000000000000000000000000000000-00f067aa0ba902b7-01",
                          "00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01",
                          "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-more",
                          "00-4bf92f3577b34da6a3ce929d0e0e473-00f067aa0ba902b7-01"}) {
    EXPECT_FALSE(ParseTraceparent(bad).has_value()) << bad;
  }
  EXPECT_TRUE(ParseTraceparent("01-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-more"))
      << "a later version may say more";
}

TEST(TracerTest, AChildIsOfItsParentsTraceAndLiesWithinItsTime) {
  const TempDir directory;
  const std::string path = directory / "spans.jsonl";
  auto tracer = Tracer::Open(path, "tandem-trainer");
  ASSERT_THAT(tracer, IsOk());
  {
    ScopedSpan step({tracer->get()}, "train_step");
    step.Set("tandem.step", int64_t{7});
    ScopedSpan call(step.parent(), "ask_for_group", SpanKind::kClient);
    call.Set("share", 0.5);
    call.SetError("no \"server\"");
  }
  const auto lines = Lines(path);
  ASSERT_EQ(lines.size(), 2u);
  const json& call = lines[0]["resourceSpans"][0]["scopeSpans"][0]["spans"][0];
  const json& step = lines[1]["resourceSpans"][0]["scopeSpans"][0]["spans"][0];
  EXPECT_EQ(lines[0]["resourceSpans"][0]["resource"]["attributes"][0],
            json::parse(R"({"key": "service.name", "value": {"stringValue": "tandem-trainer"}})"));
  EXPECT_EQ(step["name"], "train_step");
  EXPECT_EQ(step["kind"], 1);
  EXPECT_FALSE(step.contains("parentSpanId"));
  EXPECT_EQ(step["traceId"].get<std::string>().size(), 32u);
  EXPECT_EQ(step["attributes"],
            json::parse(R"([{"key": "tandem.step", "value": {"intValue": "7"}}])"));
  EXPECT_EQ(call["traceId"], step["traceId"]);
  EXPECT_EQ(call["parentSpanId"], step["spanId"]);
  EXPECT_NE(call["spanId"], step["spanId"]);
  EXPECT_EQ(call["kind"], 3);
  EXPECT_EQ(call["status"], json::parse(R"({"code": 2, "message": "no \"server\""})"));
  const auto ns = [](const json& span, const char* key) {
    return std::stoll(span[key].get<std::string>());
  };
  EXPECT_LE(ns(step, "startTimeUnixNano"), ns(call, "startTimeUnixNano"));
  EXPECT_LE(ns(call, "startTimeUnixNano"), ns(call, "endTimeUnixNano"));
  EXPECT_LE(ns(call, "endTimeUnixNano"), ns(step, "endTimeUnixNano"));
}

TEST(TracerTest, WithoutATracerNothingIsKept) {
  ScopedSpan span({}, "train_step");
  span.Set("tandem.step", int64_t{7});
  EXPECT_EQ(span.traceparent(), "");
  EXPECT_EQ(span.parent().tracer, nullptr);
}

}  // namespace
}  // namespace tandem
