#include "drift_lab/importers/importer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <ostream>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/files/file_system.h"
#include "drift_lab/records/records_file.h"
#include "tests/support/status_matchers.h"
#include "tests/support/temp_dir.h"

namespace tandem::drift {
namespace {

using ::tandem::testing::IsOk;
using ::tandem::testing::TempDir;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

std::string Fixture(const std::string& name) {
  return TANDEM_SOURCE_DIR "/tests/testdata/foreign/" + name;
}

// The lines of a records file, the header without the program that made it.
std::vector<std::string> LinesOf(const Records& records, const std::string& name) {
  const TempDir directory;
  const std::string path = directory.path() + "/" + name;
  EXPECT_THAT(WriteRecords(path, records), IsOk());
  std::istringstream text(ReadFile(path).value());
  std::vector<std::string> lines;
  for (std::string line; std::getline(text, line);) {
    if (lines.empty()) {
      auto header = nlohmann::ordered_json::parse(line);
      header.erase("created_by");
      line = header.dump();
    }
    lines.push_back(line);
  }
  return lines;
}

// What `options` import from a fixture, and the notes.
struct Case {
  std::string name;  // of expected/NAME.jsonl
  std::string from;
  std::string fixture;  // a file or directory
  std::vector<std::string> notes;
  std::vector<std::string> maps, claims;
};

void PrintTo(const Case& one, std::ostream* out) { *out << one.name; }

class ImportsAFixture : public ::testing::TestWithParam<Case> {};

TEST_P(ImportsAFixture, AsTheRowsThatWereWrittenByHand) {
  const Case& one = GetParam();
  const auto imported = ImportRecords(
      {.from = one.from, .paths = {Fixture(one.fixture)}, .maps = one.maps, .claims = one.claims});
  ASSERT_THAT(imported, IsOk());
  const auto expected = ReadRecords(Fixture("expected/" + one.name + ".jsonl"));
  ASSERT_THAT(expected, IsOk());
  EXPECT_EQ(LinesOf(imported->records, "imported.jsonl"), LinesOf(*expected, "expected.jsonl"));
  EXPECT_EQ(imported->notes, one.notes);
}

INSTANTIATE_TEST_SUITE_P(
    Frameworks, ImportsAFixture,
    ::testing::Values(
        Case{.name = "open-instruct",
             .from = "open-instruct",
             .fixture = "open-instruct",
             .notes =
                 {"tools were called: response_tokens holds their answers, which no field tells "
                  "from drawn tokens, so that they count as drawn"}},
        Case{.name = "slime",
             .from = "slime",
             .fixture = "slime/rollout_3.json",
             .notes = {"weight_versions has several versions without their numbers of tokens: left "
                       "out, so that staleness cannot be told",
                       "reward is not one number: left out"}},
        Case{.name = "slime-train", .from = "slime", .fixture = "slime/train_3.json"},
        Case{.name = "miles", .from = "slime", .fixture = "miles"},
        Case{.name = "vllm-completions",
             .from = "vllm",
             .fixture = "vllm/completions.jsonl",
             .notes = {"top_logprobs are of texts without token ids: left out"}},
        Case{.name = "vllm-generate", .from = "vllm", .fixture = "vllm/generate.jsonl"},
        Case{.name = "vllm-request-output", .from = "vllm", .fixture = "vllm/request_output.jsonl"},
        Case{.name = "sglang",
             .from = "sglang",
             .fixture = "sglang/generate.jsonl",
             .notes =
                 {"weight versions are not whole numbers: left out, so that staleness cannot be "
                  "told"}},
        Case{.name = "llama.cpp", .from = "llama.cpp", .fixture = "llama.cpp/completion.jsonl"},
        Case{.name = "openai", .from = "openai", .fixture = "openai/chat.jsonl"},
        Case{.name = "jsonl",
             .from = "jsonl",
             .fixture = "jsonl/rows.jsonl",
             .maps = {"prompt_ids=q", "completion_ids=a", "behaviour_logprobs=lp.sampler",
                      "proximal_logprobs=lp.trainer", "reward=score", "step=it"},
             .claims = {"model=org/name", "behaviour.temperature=0.7", "proximal.policy=moving"}},
        Case{.name = "safetensors",
             .from = "jsonl",
             .fixture = "jsonl/rows.safetensors",
             .maps = {"token_ids=ids", "attention_mask=valid", "prompt_length=prompt_len",
                      "behaviour_logprobs=lp"}}),
    [](const auto& test) {
      std::string name = test.param.name;
      std::erase_if(name, [](char c) { return c == '-' || c == '.'; });
      return name;
    });

TEST(Importer, TakesTheStepFilesOfADirectoryAndSaysWhichFileItLeftOut) {
  const auto imported = ImportRecords({.from = "nemo-rl", .paths = {Fixture("nemo-rl")}});
  ASSERT_THAT(imported, IsOk());
  const auto expected = ReadRecords(Fixture("expected/nemo-rl.jsonl"));
  ASSERT_THAT(expected, IsOk());
  EXPECT_EQ(LinesOf(imported->records, "imported.jsonl"), LinesOf(*expected, "expected.jsonl"));
  EXPECT_THAT(imported->notes, ElementsAre(HasSubstr("left out 1 file for this reason: ")));
  EXPECT_THAT(imported->notes[0], HasSubstr("val_data_step4.jsonl line 1: expected "));
}

TEST(Importer, TakesThePatternOfStepFilesInTheOrderOfTheirSteps) {
  const auto imported =
      ImportRecords({.from = "nemo-rl", .paths = {Fixture("nemo-rl/train_data_step*.jsonl")}});
  ASSERT_THAT(imported, IsOk());
  EXPECT_EQ(imported->num_files, 2);
  ASSERT_EQ(imported->records.num_rows(), 3);
  EXPECT_EQ(imported->records.rows[1].step, 3);
  EXPECT_EQ(imported->records.rows[2].step, 4);
  EXPECT_THAT(imported->notes, IsEmpty());
}

TEST(Importer, WaitsForThePrimeRlStepsThatAreStillWritten) {
  const auto imported =
      ImportRecords({.from = "prime-rl", .paths = {Fixture("prime-rl/token_exports")}});
  ASSERT_THAT(imported, IsOk());
  const auto expected = ReadRecords(Fixture("expected/prime-rl.jsonl"));
  ASSERT_THAT(expected, IsOk());
  EXPECT_EQ(LinesOf(imported->records, "imported.jsonl"), LinesOf(*expected, "expected.jsonl"));
  EXPECT_THAT(imported->notes,
              ElementsAre(HasSubstr("no STABLE marker and may still be written: ")));
  // A file that is named is read.
  const auto named = ImportRecords(
      {.from = "prime-rl", .paths = {Fixture("prime-rl/token_exports/step_3/rank_0.jsonl")}});
  ASSERT_THAT(named, IsOk());
  EXPECT_EQ(named->records.rows[0].step, 3);
}

TEST(Importer, KeepsWhatIsNotANumberApartFromWhatIsMissing) {
  const auto imported = ImportRecords({.from = "jsonl", .paths = {Fixture("jsonl/nan.jsonl")}});
  ASSERT_THAT(imported, IsOk());
  const Records& records = imported->records;
  const auto behaviour = static_cast<size_t>(Column::kBehaviour);
  EXPECT_EQ(records.num_given[behaviour], 2);
  EXPECT_EQ(records.num_nan[behaviour], 1);
  EXPECT_EQ(records.column(Column::kBehaviour)[2], -std::numeric_limits<float>::infinity());
}

TEST(Importer, SaysThatAColumnOfZerosIsAPlaceholder) {
  const TempDir directory;
  const std::string path = directory.path() + "/rows.jsonl";
  ASSERT_THAT(
      WriteFileAtomically(
          path,
          "{\"token_ids\": [1, 2], \"prompt_length\": 1, \"behaviour_logprobs\": [null, -1], "
          "\"proximal_logprobs\": [0, 0]}\n"),
      IsOk());
  const auto imported = ImportRecords({.from = "jsonl", .paths = {path}});
  ASSERT_THAT(imported, IsOk());
  EXPECT_THAT(imported->notes, ElementsAre("proximal_logprobs is 0 on every drawn token: a "
                                           "placeholder, not log-probs"));
}

TEST(Importer, ClaimsNoTemperatureWhereRowsDisagreeAndKeepsThatOfTheUser) {
  const TempDir directory;
  const std::string path = directory.path() + "/answers.jsonl";
  std::string text;
  for (const char* temperature : {"0.5", "0.75"}) {
    absl::StrAppend(&text, R"({"request": {"token_ids": [1], "temperature": )", temperature,
                    R"(, "top_p": 0.9}, "response": {"choices": [{"token_ids": [2], "logprobs": )",
                    R"({"content": [{"token": "a", "logprob": -1}]}}]}})", "\n");
  }
  ASSERT_THAT(WriteFileAtomically(path, text), IsOk());
  const auto imported = ImportRecords({.from = "vllm", .paths = {path}});
  ASSERT_THAT(imported, IsOk());
  EXPECT_EQ(imported->records.header.behaviour.temperature, std::nullopt);
  EXPECT_EQ(imported->records.header.behaviour.top_p, 0.9);
  EXPECT_THAT(imported->notes, ElementsAre("behaviour.temperature differs from row to row, so the "
                                           "header does not claim one"));
  const auto claimed =
      ImportRecords({.from = "vllm", .paths = {path}, .claims = {"behaviour.temperature=0.6"}});
  ASSERT_THAT(claimed, IsOk());
  EXPECT_EQ(claimed->records.header.behaviour.temperature, 0.6);
}

TEST(Importer, ListsEveryFrameworkInTheHelp) {
  const std::string help = ImporterHelp();
  for (const std::string& name : ImporterNames()) EXPECT_THAT(help, HasSubstr("  " + name + " "));
  EXPECT_EQ(ImporterNames().size(), 13);
}

}  // namespace
}  // namespace tandem::drift
