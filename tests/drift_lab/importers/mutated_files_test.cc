// Every value of every fixture is replaced by others, one at a time: the importers read the file or say
// what is wrong with it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/files/file_system.h"
#include "drift_lab/importers/importer.h"
#include "tests/support/temp_dir.h"

namespace tandem::drift {
namespace {

using ::nlohmann::json;
using ::tandem::testing::TempDir;

// The places of all values below `value`, at most three elements of each list.
void AddPlaces(const json& value, const json::json_pointer& at,
               std::vector<json::json_pointer>& places) {
  if (!at.empty()) places.push_back(at);
  if (value.is_object()) {
    for (const auto& [name, member] : value.items()) AddPlaces(member, at / name, places);
  } else if (value.is_array()) {
    for (size_t i = 0; i < value.size() && i < 3; ++i) AddPlaces(value[i], at / i, places);
  }
}

struct Mutated {
  std::string name, from, file;
};
void PrintTo(const Mutated& one, std::ostream* out) { *out << one.name; }

class ImportsAMutatedFile : public ::testing::TestWithParam<Mutated> {};

TEST_P(ImportsAMutatedFile, OrSaysWhatIsWrong) {
  const std::string text =
      ReadFile(absl::StrCat(TANDEM_SOURCE_DIR "/tests/testdata/foreign/", GetParam().file)).value();
  const json whole = json::parse(text.substr(0, text.find('\n')), nullptr, false);
  ASSERT_FALSE(whole.is_discarded());
  std::vector<json::json_pointer> places;
  AddPlaces(whole, json::json_pointer(), places);
  const TempDir directory;
  const std::string path = directory / "mutated.json";
  int refused = 0;
  for (const json::json_pointer& place : places) {
    for (const json& value :
         {json(nullptr), json("text"), json(1e300), json(-1), json(18446744073709551615U),
          json::array(), json{1, 2, 3}, json{{1}}, json::object(), json(true)}) {
      json mutated = whole;
      mutated[place] = value;
      // Not WriteFileAtomically: thousands of fsyncs take a minute.
      std::ofstream(path) << mutated.dump();
      const absl::Status status =
          ImportRecords({.from = GetParam().from, .paths = {path}}).status();
      if (status.ok()) continue;
      ++refused;
      EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument)
          << place.to_string() << " = " << value << ": " << status;
      EXPECT_THAT(std::string(status.message()), ::testing::StartsWith(path));
    }
  }
  EXPECT_GT(refused, 20);
}

INSTANTIATE_TEST_SUITE_P(
    Frameworks, ImportsAMutatedFile,
    ::testing::Values(Mutated{"NemoRl", "nemo-rl", "nemo-rl/train_data_step4.jsonl"},
                      Mutated{"PrimeRl", "prime-rl", "prime-rl/token_exports/step_3/rank_0.jsonl"},
                      Mutated{"OpenInstruct", "open-instruct",
                              "open-instruct/grpo_1_rollouts_000000.jsonl"},
                      Mutated{"Slime", "slime", "slime/train_3.json"},
                      Mutated{"VllmCompletions", "vllm", "vllm/completions.jsonl"},
                      Mutated{"VllmGenerate", "vllm", "vllm/generate.jsonl"},
                      Mutated{"VllmRequestOutput", "vllm", "vllm/request_output.jsonl"},
                      Mutated{"Sglang", "sglang", "sglang/generate.jsonl"},
                      Mutated{"LlamaCpp", "llama.cpp", "llama.cpp/completion.jsonl"},
                      Mutated{"OpenAi", "openai", "openai/chat.jsonl"}),
    [](const auto& test) { return test.param.name; });

}  // namespace
}  // namespace tandem::drift
