#include "cli/report/report.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>

#include "cli/report/run_data.h"
#include "cli/report/run_files.h"
#include "tests/support/run_program.h"
#include "tests/support/status_matchers.h"
#include "tests/support/temp_dir.h"

namespace tandem::report {
namespace {

using ::tandem::testing::FailsWith;
using ::tandem::testing::IsOk;
using ::tandem::testing::TempDir;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

void Put(const std::string& path, const std::string& text) {
  std::filesystem::create_directories(std::filesystem::path(path).parent_path());
  std::ofstream(path) << text;
}

std::string Get(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

Json Data(const TempDir& run) {
  Notices notices;
  const RunFiles files(run.path(), &notices);
  return BuildRunData(files, DataLimits(), &notices);
}

TEST(Report, RefusesADirectoryThatIsNotARun) {
  const TempDir run;
  EXPECT_THAT(WriteReport(run / "missing", ""),
              FailsWith(absl::StatusCode::kNotFound, "run directory not found"));
  EXPECT_THAT(WriteReport(run.path(), ""),
              FailsWith(absl::StatusCode::kNotFound, "holds none of run.json"));
}

TEST(Report, ComesOutOfRunJsonAlone) {
  const TempDir run;
  Put(run / "run.json", R"({"run_id":"r<1>"})");
  ASSERT_THAT(WriteReport(run.path(), ""), IsOk());
  EXPECT_THAT(Get(run / "report.html"), HasSubstr("<title>r&lt;1&gt; - Tandem report</title>"));
}

TEST(Report, NeedsNoNetworkAndNoOtherFile) {
  const TempDir run;
  Put(run / "run.json", "{}");
  ASSERT_THAT(WriteReport(run.path(), run / "page.html"), IsOk());
  const std::string page = Get(run / "page.html");
  EXPECT_THAT(page, HasSubstr("Chart.js v"));
  EXPECT_THAT(page, HasSubstr("default-src 'none'"));
  for (const char* absent : {"<link", "src=\"http", "@import", "fetch(", "@DATA@", "@SCRIPTS@"}) {
    EXPECT_THAT(page, Not(HasSubstr(absent)));
  }
}

TEST(Report, TextOfACompletionCannotBecomeMarkup) {
  const TempDir run;
  Put(run / "run.json", "{}");
  Put(run / "rollouts/step_1.jsonl",
      R"({"group_id":1,"prompt":"<!-- p","completions":[{"index":0,"tokens":["</script>","<img onerror=alert(1)>","@SCRIPTS@"],)"
      R"("behaviour_logprobs":[-1,-1,-1],"proximal_logprobs":[-1,-2,-1]}]})"
      "\n");
  ASSERT_THAT(WriteReport(run.path(), ""), IsOk());
  const std::string page = Get(run / "report.html");
  EXPECT_THAT(page, Not(HasSubstr("<img onerror")));
  EXPECT_THAT(page, Not(HasSubstr("<!-- p")));
  EXPECT_THAT(page, HasSubstr(R"(\u003c/script\u003e)"));
  EXPECT_THAT(page, HasSubstr(R"("@SCRIPTS@")"));
  size_t ends = 0;
  for (size_t at = page.find("</script"); at != std::string::npos;
       at = page.find("</script", at + 1)) {
    ++ends;
  }
  EXPECT_EQ(ends, 3u);  // Chart.js, the data, the page's scripts
}

TEST(Report, OnlyItsOwnScriptsMayRun) {
  const TempDir run;
  Put(run / "run.json", "{}");
  ASSERT_THAT(WriteReport(run.path(), ""), IsOk());
  const std::string page = Get(run / "report.html");
  const size_t at = page.find("script-src 'nonce-");
  ASSERT_NE(at, std::string::npos);
  const std::string nonce = page.substr(at + 18, 16);
  EXPECT_THAT(page, HasSubstr("<script nonce=\"" + nonce + "\">"));
}

TEST(Report, SaysThatTheDiskIsFullOrThePathCannotBeWritten) {
  const TempDir run;
  Put(run / "run.json", "{}");
  EXPECT_FALSE(WriteReport(run.path(), run / "no/such/folder/report.html").ok());
  EXPECT_FALSE(std::filesystem::exists(run / "no"));
}

TEST(Report, ReadsAWholeSyntheticRun) {
  const TempDir run;
  const std::string script = std::string(TANDEM_SOURCE_DIR) + "/tests/cli/report/make_run.py";
  ASSERT_EQ(
      ::tandem::testing::RunProgram({TANDEM_PYTHON, "-B", script, run.path(), "--steps", "5"}), 0);
  ASSERT_THAT(WriteReport(run.path(), ""), IsOk());
  const Json data = Data(run);
  EXPECT_THAT(data["notices"], IsEmpty());
  EXPECT_EQ(data["state"], "finished");
  EXPECT_EQ(data["commits"].size(), 5u);
  EXPECT_EQ(data["alerts"].size(), 1u);
  EXPECT_EQ(data["dropped_groups"], Json({{"stale", 1}}));
  EXPECT_EQ(data["headline"]["num_steps"], 5);
  EXPECT_EQ(data["samples"]["worst"].size(), 20u);
}

TEST(RunData, HeadlineComparesTheFirstThreeStepsWithTheLastThree) {
  const TempDir run;
  Put(run / "metrics.jsonl",
      R"({"step":0,"eval/greedy":0.5,"eval/greedy_share_correct":0.4}
{"step":1,"reward/mean":0.1,"push/bytes":4e6,"push/seconds":1,"drift/ess_fraction":0.9,"staleness/max":0}
{"step":2,"reward/mean":0.2,"push/bytes":4e6,"push/seconds":3,"drift/ess_fraction":0.7,"staleness/max":2}
{"step":3,"reward/mean":0.3,"drift/mean_abs_delta":0.01,"throughput/sampled_tokens_per_s":10}
{"step":4,"reward/mean":0.8,"drift/mean_abs_delta":0.03,"throughput/sampled_tokens_per_s":30,"eval/greedy":1.0,"eval/greedy_share_correct":0.9}
)");
  const Json h = Data(run)["headline"];
  EXPECT_NEAR(h["reward_first"].get<double>(), 0.2, 1e-12);
  EXPECT_NEAR(h["reward_last"].get<double>(), 1.3 / 3, 1e-12);
  EXPECT_EQ(h["greedy_before"], 0.4);
  EXPECT_EQ(h["greedy_after"], 0.9);
  EXPECT_EQ(h["greedy_after_step"], 4);
  EXPECT_NEAR(h["mean_abs_delta"].get<double>(), 0.02, 1e-12);
  EXPECT_EQ(h["ess_min"], 0.7);
  EXPECT_EQ(h["staleness_max"], 2.0);
  EXPECT_EQ(h["sampled_tokens_per_s"], 20.0);  // the median of 10 and 30
  EXPECT_EQ(h["push_mb_per_s"], 2.0);          // 8 MB in 4 s
  EXPECT_EQ(h["num_steps"], 4);                // step 0 is an evaluation, not a train step
}

TEST(RunData, NamesAMalformedLineAndForgivesATornLastOne) {
  const TempDir run;
  Put(run / "metrics.jsonl",
      "{\"step\":1,\"reward/mean\":1}\nnonsense\n[3]\n{\"step\":2}\n{\"step\":3,\"rew");
  const Json data = Data(run);
  EXPECT_THAT(data["steps"], ElementsAre(1, 2));
  ASSERT_EQ(data["notices"].size(), 2u);
  EXPECT_THAT(data["notices"][0].get<std::string>(),
              HasSubstr("metrics.jsonl:2: not a JSON object"));
  EXPECT_THAT(data["notices"][1].get<std::string>(),
              HasSubstr("metrics.jsonl:3: not a JSON object"));
}

TEST(RunData, SurvivesALineOfBracketsAndInvalidUtf8) {
  const TempDir run;
  Put(run / "metrics.jsonl", std::string(200000, '[') + "\n{\"step\":1}\n");
  Put(run / "config.yaml", "name: \xff\xfe\n");
  const Json data = Data(run);
  EXPECT_THAT(data["steps"], ElementsAre(1));
  EXPECT_THAT(data["notices"][0].get<std::string>(), HasSubstr("metrics.jsonl:1"));
  EXPECT_THAT(WriteReport(run.path(), ""), IsOk());
}

TEST(RunData, CountsARepeatedStepOnceByItsLastLine) {
  const TempDir run;
  Put(run / "metrics.jsonl",
      "{\"step\":1,\"reward/mean\":0.1,\"drops/stale\":1}\n{\"step\":2,\"reward/mean\":0.2,\"drops/"
      "stale\":5}\n"
      "{\"step\":2,\"reward/mean\":0.6,\"drops/stale\":2}\n");
  const Json data = Data(run);
  EXPECT_THAT(data["series"]["reward/mean"], ElementsAre(0.1, 0.6));
  EXPECT_EQ(data["drops"]["stale"], 3.0);
  EXPECT_THAT(data["notices"][0].get<std::string>(), HasSubstr("occur more than once"));
}

TEST(RunData, AddsHistogramsAndStalenessOverSteps) {
  const TempDir run;
  Put(run / "metrics.jsonl",
      R"({"step":1,"correction/hist_raw":[1,2],"correction/hist_truncated":[3,0],"staleness/histogram":{"0":4}}
{"step":2,"correction/hist_raw":[10,20],"correction/hist_truncated":[30,0],"staleness/histogram":{"0":1,"2":7}}
)");
  const Json data = Data(run);
  EXPECT_THAT(data["weights"]["all"]["raw"], ElementsAre(11, 22));
  EXPECT_THAT(data["weights"]["all"]["truncated"], ElementsAre(33, 0));
  EXPECT_EQ(data["weights"]["last"]["step"], 2);
  EXPECT_EQ(data["staleness"], Json({{"0", 5.0}, {"2", 7.0}}));
}

TEST(RunData, NullIsAGapNotAZero) {
  const TempDir run;
  Put(run / "metrics.jsonl",
      "{\"step\":1,\"loss/policy\":null}\n{\"step\":2,\"loss/policy\":0.5}\n");
  EXPECT_THAT(Data(run)["series"]["loss/policy"], ElementsAre(nullptr, 0.5));
}

TEST(RunData, FillsACommitFromTheLineOfItsVersion) {
  const TempDir run;
  Put(run / "metrics.jsonl",
      "{\"step\":7,\"push/version\":7,\"push/pause_ms\":3.5,\"push/bytes\":9}\n");
  Put(run / "events.jsonl",
      "{\"kind\":\"push_committed\",\"version\":7,\"server\":\"a:1\",\"bytes\":8}\n");
  const Json commit = Data(run)["commits"][0];
  EXPECT_EQ(commit["pause_ms"], 3.5);
  EXPECT_EQ(commit["bytes"], 8);  // the event's own number stays
}

TEST(RunData, AStoppedRunThatWasResumedIsInProgress) {
  const TempDir run;
  Put(run / "events.jsonl", "{\"kind\":\"run_stopped\"}\n");
  EXPECT_EQ(Data(run)["state"], "stopped");
  Put(run / "events.jsonl", "{\"kind\":\"run_stopped\"}\n{\"kind\":\"resumed\"}\n");
  EXPECT_EQ(Data(run)["state"], "in progress");
}

TEST(RunData, ThinsCurvesAndSaysSo) {
  const TempDir run;
  Put(run / "metrics.jsonl",
      "{\"step\":1}\n{\"step\":2}\n{\"step\":3}\n{\"step\":4}\n{\"step\":5}\n{\"step\":6}\n");
  Notices notices;
  DataLimits limits;
  limits.max_steps = 3;
  const Json data = BuildRunData(RunFiles(run.path(), &notices), limits, &notices);
  EXPECT_THAT(data["steps"], ElementsAre(1, 3, 5, 6));
  EXPECT_THAT(data["notices"][0].get<std::string>(),
              HasSubstr("6 steps; curves show every 2. one"));
}

std::string Group(int id, bool zero_variance, const std::string& completion) {
  return "{\"group_id\":" + std::to_string(id) +
         ",\"zero_variance\":" + (zero_variance ? "true" : "false") + ",\"completions\":[" +
         completion + "]}\n";
}

TEST(RunData, VersionLagsAndTurnsAreFollowedOverStepsAndOtherSplitsShownOfTheLast) {
  const TempDir run;
  Put(run / "metrics.jsonl",
      R"({"step":1,"drift/by_version_lag":{"0":{"tokens":4,"k3":[0.1,0.05,0.2],"mean_abs_delta":[1,null,null]}},"drift/by_place":{"first":{"tokens":1}}}
{"step":2}
{"step":3,"drift/by_version_lag":{"0":{"k3":[0.3,0.2,0.4]},"1":{"k3":[0.6,0.5,0.7]}},"drift/by_turn":{"2":{"k3":[0.5,0.4,0.6]}},"drift/by_place":{"first":{"tokens":2},"last":{"tokens":3}},"drift/by_length":"broken"}
)");
  const Json drift = Data(run)["drift"];
  const Json k3 = drift["by_version_lag"]["k3"];
  EXPECT_EQ(k3["0"], Json::parse("[[0.1,0.05,0.2],null,[0.3,0.2,0.4]]"));
  EXPECT_EQ(k3["1"], Json::parse("[null,null,[0.6,0.5,0.7]]"));
  EXPECT_EQ(drift["by_version_lag"]["mean_abs_delta"]["0"],
            Json::parse("[[1,null,null],null,null]"));
  EXPECT_EQ(drift["by_turn"]["k3"]["2"], Json::parse("[null,null,[0.5,0.4,0.6]]"));
  EXPECT_EQ(drift["last"]["place"]["step"], 3);
  EXPECT_EQ(drift["last"]["place"]["buckets"]["last"]["tokens"], 3);
  EXPECT_FALSE(drift["last"].contains("length"));
}

TEST(RunData, CapturesAreListedByStepWithThePagesThatStandBesideThem) {
  const TempDir run;
  Put(run / "metrics.jsonl", "{\"step\":1}\n");
  Put(run / "captures/step_12/manifest.json", "{}");
  Put(run / "captures/step_4/manifest.json", "{}");
  Put(run / "captures/step_4/attribution.html", "<!DOCTYPE html>");
  Put(run / "captures/step_20/tensors.safetensors", "writing it did not end");
  Put(run / "captures/weights/version_3.safetensors", "");
  EXPECT_EQ(Data(run)["captures"],
            Json::parse(R"([{"page":true,"step":4},{"page":false,"step":12}])"));
}

TEST(Report, LinksToTheRunDirectoryFromWhereverThePageIs) {
  const TempDir run;
  const auto link = [&](const std::string& page, const std::string& expected) {
    ASSERT_THAT(WriteReport(run / "runs/small", run / page), IsOk());
    EXPECT_THAT(Get(run / page), HasSubstr("\"run_directory\":\"" + expected + "\""));
  };
  Put(run / "runs/small/run.json", "{}");
  Put(run / "pages/keep", "");
  link("runs/small/report.html", ".");
  link("report.html", "runs/small");
  link("pages/report.html", "../runs/small");
}

TEST(AttributionHtml, IsOneFileWhoseTextCannotBecomeMarkup) {
  const std::string page =
      AttributionHtml("step <4>", R"({"capture":"</script><img onerror=x>&"})");
  EXPECT_THAT(page, HasSubstr("<title>step &lt;4&gt; - Tandem attribution</title>"));
  EXPECT_THAT(page, HasSubstr(R"("\u003c/script\u003e\u003cimg onerror=x\u003e\u0026")"));
  EXPECT_THAT(page, HasSubstr("function verdictText()"));
  for (const char* absent : {"<img onerror", "<link", "src=\"http", "fetch(", "@DATA@", "@SCRIPTS@",
                             "function learningSection()"}) {
    EXPECT_THAT(page, Not(HasSubstr(absent)));
  }
}

TEST(Samples, ComeFromTheFirstMiddleAndLastStepWithTeachingGroupsFirst) {
  const TempDir run;
  for (int step : {1, 2, 10, 11, 12}) {
    Put(run / ("rollouts/step_" + std::to_string(step) + ".jsonl"),
        Group(1, true, "") + Group(2, false, ""));
  }
  const Json samples = Data(run)["samples"];
  ASSERT_EQ(samples["steps"].size(), 3u);
  EXPECT_EQ(samples["steps"][0]["step"], 1);
  EXPECT_EQ(samples["steps"][1]["step"], 10);
  EXPECT_EQ(samples["steps"][2]["step"], 12);
  EXPECT_EQ(samples["steps"][0]["groups"][0]["group_id"], 2);
}

TEST(Samples, WorstTokensFallInSizeAndLeaveMaskedCompletionsOut) {
  const TempDir run;
  Put(run / "rollouts/step_3.jsonl",
      Group(
          5, false,
          R"({"index":0,"tokens":["a","b","c"],"behaviour_logprobs":[-1,-1,-1],"proximal_logprobs":[-1.25,-3,-0.5],"versions":[[2,1],[3,2]]},)"
          R"({"index":1,"masked":true,"tokens":["x"],"behaviour_logprobs":[-1],"proximal_logprobs":[-9]},)"
          R"({"index":2,"tokens":["y"],"behaviour_logprobs":[-1],"proximal_logprobs":[null]})"));
  const Json worst = Data(run)["samples"]["worst"];
  ASSERT_EQ(worst.size(), 3u);
  EXPECT_EQ(worst[0]["token"], "b");
  EXPECT_EQ(worst[0]["delta"], -2.0);
  EXPECT_THAT(worst[0]["before"], ElementsAre("a"));
  EXPECT_THAT(worst[0]["after"], ElementsAre("c"));
  EXPECT_EQ(worst[0]["version"], 3);
  EXPECT_EQ(worst[1]["delta"], 0.5);
  EXPECT_EQ(worst[2]["delta"], -0.25);
}

TEST(Samples, EachWorstTokenNamesTheCompletionThatHoldsItWholeUpToThere) {
  const TempDir run;
  std::string tokens = R"("t")", ones = "-1", last = "-1";
  for (int t = 1; t < 700; ++t) {  // more than other completions are shown
    tokens += R"(,"t")";
    ones += ",-1";
    last += t == 690 ? ",-4" : ",-1";
  }
  Put(run / "rollouts/step_3.jsonl",
      Group(
          5, false,
          R"({"index":0,"tokens":[)" + tokens + R"(],"behaviour_logprobs":[)" + ones +
              R"(],"proximal_logprobs":[)" + last + "]}," +
              R"({"index":1,"tokens":["a","b"],"behaviour_logprobs":[-1,-1],"proximal_logprobs":[-2,-3]})"));
  const Json samples = Data(run)["samples"];
  const Json& worst = samples["worst"];
  ASSERT_EQ(worst.size(), 3u);
  EXPECT_EQ(worst[0]["position"], 690);
  EXPECT_EQ(worst[0]["completion"], 0);
  EXPECT_EQ(worst[1]["completion"], 1);
  EXPECT_EQ(worst[2]["completion"], 1);
  const Json& holders = samples["worst_completions"];
  ASSERT_EQ(holders.size(), 2u);
  EXPECT_EQ(holders[0]["completion"]["tokens"].size(), 695u);  // 4 tokens of context behind it
  EXPECT_EQ(holders[0]["completion"]["num_tokens"], 700);
  EXPECT_EQ(holders[1]["step"], 3);
  EXPECT_EQ(holders[1]["group_id"], 5);
  EXPECT_EQ(holders[1]["completion"]["index"], 1);
  EXPECT_THAT(holders[1]["completion"]["tokens"], ElementsAre("a", "b"));
}

TEST(Samples, GivenTokensHaveNoVersion) {
  const TempDir run;
  Put(run / "rollouts/step_1.jsonl",
      Group(
          1, false,
          R"({"index":0,"tokens":["a","b","c","d"],"behaviour_logprobs":[-1,null,-1,-1],"versions":[[2,1],[3,2]],"segments":[["drawn",1],["given",1],["drawn",2]]})"));
  const Json shown = Data(run)["samples"]["steps"][0]["groups"][0]["completions"][0];
  EXPECT_THAT(shown["given"], ElementsAre(false, true, false, false));
  EXPECT_THAT(shown["versions"], ElementsAre(2, nullptr, 3, 3));
}

TEST(Samples, NameACompletionWhoseArraysDiffer) {
  const TempDir run;
  Put(run / "rollouts/step_1.jsonl",
      Group(1, false, R"({"tokens":["a","b"],"behaviour_logprobs":[-1]})"));
  const Json data = Data(run);
  EXPECT_THAT(data["samples"]["steps"][0]["groups"][0]["completions"], IsEmpty());
  EXPECT_THAT(
      data["notices"][0].get<std::string>(),
      HasSubstr("rollouts/step_1.jsonl:1: completion 0 has 2 tokens and 1 behaviour_logprobs"));
}

}  // namespace
}  // namespace tandem::report
