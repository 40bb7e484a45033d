// What the importers refuse, and what they say of it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ostream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/files/file_system.h"
#include "drift_lab/importers/importer.h"
#include "tests/support/status_matchers.h"
#include "tests/support/temp_dir.h"

namespace tandem::drift {
namespace {

using ::tandem::testing::FailsWith;
using ::tandem::testing::IsOk;
using ::tandem::testing::TempDir;

constexpr auto kBadFile = absl::StatusCode::kInvalidArgument;

std::string Foreign(const std::string& name) {
  return TANDEM_SOURCE_DIR "/tests/testdata/foreign/" + name;
}

struct Refusal {
  std::string name;
  std::string from;
  std::string fixture;
  std::string said;
};
void PrintTo(const Refusal& refusal, std::ostream* out) { *out << refusal.name; }

class RefusesAFixture : public ::testing::TestWithParam<Refusal> {};

TEST_P(RefusesAFixture, AndSaysWhatToDoInstead) {
  const Refusal& refusal = GetParam();
  EXPECT_THAT(ImportRecords({.from = refusal.from, .paths = {Foreign(refusal.fixture)}}),
              FailsWith(kBadFile, refusal.said));
}

INSTANTIATE_TEST_SUITE_P(
    Frameworks, RefusesAFixture,
    ::testing::Values(
        Refusal{"VerlTexts", "verl", "verl/1.jsonl",
                "1.jsonl line 1: texts without token ids or log-probs; "
                "python/tandem_rl/export/verl.py"},
        Refusal{
            "VerlPickle", "verl", "verl/gen_batch.dp",
            "a pickle (Python's or PyTorch's), which the lab does not open, since opening it runs "
            "whatever program it holds; python/tandem_rl/export/verl.py"},
        Refusal{"SkyRlPickle", "skyrl", "skyrl/global_step_1_training_input.pkl",
                "python/tandem_rl/export/skyrl.py"},
        Refusal{"SkyRlDirectory", "skyrl", "skyrl", "python/tandem_rl/export/skyrl.py"},
        Refusal{"SlimePickle", "slime", "slime/rollout_3.pt", "python/tandem_rl/export/slime.py"},
        Refusal{"APickleUnderAnyName", "jsonl", "verl/gen_batch.dp",
                "python/tandem_rl/export/verl.py"},
        Refusal{"ArealTexts", "areal", "areal/0/17.jsonl", "python/tandem_rl/export/areal_hook.py"},
        Refusal{"TrlTexts", "trl", "trl/completions_00001.parquet",
                "completions_00001.parquet row 1: texts without token ids or log-probs; "
                "python/tandem_rl/export/trl_callback.py"},
        Refusal{"TrlWhenVerlWasSaid", "verl", "trl/completions_00001.parquet",
                "not what verl writes; "},
        Refusal{"TrlWhenNemoWasSaid", "nemo-rl", "trl/completions_00001.parquet",
                "it looks like trl, which has no token ids in it: "
                "python/tandem_rl/export/trl_callback.py"},
        Refusal{
            "PrimeRlWhenNemoWasSaid", "nemo-rl", "prime-rl/token_exports/step_2/rank_0.jsonl",
            "rank_0.jsonl line 1: expected generation_logprobs, prev_logprobs and "
            "token_loss_mask (train_data_step{N}.jsonl of NeMo-RL), found neither; it looks like "
            "prime-rl: --from prime-rl"},
        Refusal{"SglangWhenVllmWasSaid", "vllm", "sglang/generate.jsonl",
                "it looks like sglang: --from sglang"},
        Refusal{"SlimeWhenVerlWasSaid", "verl", "slime/train_3.json",
                "not what verl writes; it looks like slime: --from slime"},
        Refusal{
            "VllmTexts", "vllm", "vllm/texts_only.jsonl",
            "texts_only.jsonl line 1: choices[0].token_ids: expected the drawn tokens' ids, found "
            "texts only; ask with \"return_token_ids\": true"},
        Refusal{"OpenAiTexts", "openai", "openai/texts_only.jsonl",
                "found texts only; with vLLM ask with \"return_token_ids\": true"},
        Refusal{
            "LlamaCppPython", "llama.cpp", "llama.cpp/llama_cpp_python.json",
            "found texts only; llama-cpp-python answers with texts; ask llama.cpp's own server"},
        Refusal{"RecordsThemselves", "jsonl", "expected/nemo-rl.jsonl",
                "is a records file already: tandem drift check "},
        Refusal{"RowsWithoutAMap", "jsonl", "jsonl/rows.jsonl",
                "token_ids: expected a list of token ids, found nothing; say where the ids are: "
                "--map token_ids=their.field"}),
    [](const auto& test) { return test.param.name; });

class RefusesALine : public ::testing::Test {
 protected:
  absl::Status Import(const std::string& from, const std::string& line,
                      const std::vector<std::string>& maps = {}) {
    const std::string path = directory_ / "rows.jsonl";
    EXPECT_THAT(WriteFileAtomically(path, line + "\n"), IsOk());
    return ImportRecords({.from = from, .paths = {path}, .maps = maps}).status();
  }

  TempDir directory_;
};

TEST_F(RefusesALine, OfNemoRlWhoseLengthsDoNotAgree) {
  const auto line = [](const char* length, const char* mask, const char* logprobs) {
    return absl::StrCat(R"({"token_ids": [[1, 2, 3]], "input_lengths": [)", length,
                        R"(], "token_loss_mask": [)", mask, R"(], "generation_logprobs": [)",
                        logprobs, R"(], "prev_logprobs": [[0, -1, -1]]})");
  };
  EXPECT_THAT(Import("nemo-rl", line("2", "[0, 1, 0]", "[0, -1, 0]")), IsOk());
  EXPECT_THAT(Import("nemo-rl", line("4", "[0, 1, 1]", "[0, -1, -1]")),
              FailsWith(kBadFile,
                        "rows.jsonl line 1: input_lengths: expected 1 to 3 (the elements "
                        "of token_ids), found 4"));
  EXPECT_THAT(Import("nemo-rl", line("2", "[0, 1, 1]", "[0, -1, 0]")),
              FailsWith(kBadFile,
                        "token_loss_mask: expected 0 behind the 2 tokens of input_lengths, "
                        "found 1 at element 2"));
  EXPECT_THAT(Import("nemo-rl", line("3", "[0, 1, 1]", "[0, -1]")),
              FailsWith(kBadFile,
                        "generation_logprobs: expected 3 elements (as many as token_ids), "
                        "found 2"));
  EXPECT_THAT(Import("nemo-rl", line("3", "[0, 1, 1]", "[0, -1, \"x\"]")),
              FailsWith(kBadFile,
                        "generation_logprobs: expected numbers, found the text \"x\" at "
                        "element 2"));
}

TEST_F(RefusesALine, OfNemoRlThatHasOnlyDroppedGroups) {
  EXPECT_THAT(Import("nemo-rl", R"({"token_ids": [], "rewards": [1.0], "token_loss_mask": [],)"
                                R"( "generation_logprobs": [], "prev_logprobs": []})"),
              FailsWith(kBadFile,
                        "expected rows, found none; lines without token_ids (groups that "
                        "dynamic sampling dropped) are left out"));
}

TEST_F(RefusesALine, OfAnotherSchemaOfPrimeRl) {
  EXPECT_THAT(Import("prime-rl",
                     R"({"schema_version": 2, "inference_logprobs": [], "trainer_logprobs": []})"),
              FailsWith(kBadFile, "schema_version: expected 1, found 2"));
}

TEST_F(RefusesALine, OfOpenInstructWithoutLogProbs) {
  EXPECT_THAT(Import("open-instruct",
                     R"({"prompt_tokens": [1], "response_tokens": [2], "logprobs": null})"),
              FailsWith(kBadFile, "logprobs: expected log-probs of the response"));
  EXPECT_THAT(
      Import("open-instruct",
             R"({"prompt_tokens": [1], "response_tokens": [2], "logprobs": [-1, -2]})"),
      FailsWith(kBadFile, "logprobs: expected 1 elements (as many as response_tokens), found 2"));
}

TEST_F(RefusesALine, OfSlimeWhoseLengthsDoNotAgree) {
  EXPECT_THAT(
      Import("slime", R"({"tokens": [1, 2, 3], "response_length": 2, "rollout_log_probs": [-1]})"),
      FailsWith(kBadFile, "rollout_log_probs: expected 2 elements (response_length), found 1"));
  EXPECT_THAT(Import("slime", R"({"tokens": [1, 2, 3], "response_length": 2})"),
              FailsWith(kBadFile, "rollout_log_probs: expected the log-probs of the response"));
  EXPECT_THAT(Import("slime", R"({"tokens": [1], "response_length": 1, "total_length": 2,)"
                              R"( "rollout_log_probs": [-1]})"),
              FailsWith(kBadFile, "total_length: expected 1, the elements of tokens, found 2"));
}

TEST_F(RefusesALine, OfSglangWithoutThePromptsIds) {
  const auto line = [](const char* more) {
    return absl::StrCat(R"({"text": "x", "meta_info": {"prompt_tokens": 2, )",
                        R"("output_token_logprobs": [[-1, 3, null]])", more, "}}");
  };
  EXPECT_THAT(Import("sglang", line("")), FailsWith(kBadFile, "ask with \"logprob_start_len\": 0"));
  EXPECT_THAT(Import("sglang", line(R"(, "input_token_logprobs": [[-1, 2, null]])")),
              FailsWith(kBadFile,
                        "meta_info.input_token_logprobs: expected 2 elements "
                        "(prompt_tokens), found 1"));
  EXPECT_THAT(Import("sglang", R"({"text": "x", "meta_info": {"prompt_tokens": 2}})"),
              FailsWith(kBadFile, "ask with \"return_logprob\": true"));
}

TEST_F(RefusesALine, OfSglangWhoseIdsAreOthers) {
  EXPECT_THAT(
      Import("sglang",
             R"({"request": {"input_ids": [1]}, "response": {"output_ids": [9], "meta_info": )"
             R"({"output_token_logprobs": [[-1, 3, null]]}}})"),
      FailsWith(kBadFile, "output_ids: expected the ids of meta_info.output_token_logprobs"));
}

TEST_F(RefusesALine, OfLlamaCppWithoutThePromptsIdsOrWithProbabilities) {
  constexpr char kEntry[] = R"({"id": 5, "logprob": -1, "top_logprobs": []})";
  EXPECT_THAT(
      Import("llama.cpp",
             absl::StrCat(R"({"prompt": "text", "completion_probabilities": [)", kEntry, "]}")),
      FailsWith(kBadFile, "Send ids (of /tokenize) as the prompt"));
  EXPECT_THAT(Import("llama.cpp", R"({"completion_probabilities": [{"id": 5, "prob": 0.5}]})"),
              FailsWith(kBadFile, "ask with \"post_sampling_probs\": false"));
  EXPECT_THAT(Import("llama.cpp", absl::StrCat(R"({"request": {"prompt": [1, 2]}, "response": )",
                                               R"({"tokens": [6], "completion_probabilities": [)",
                                               kEntry, "]}}")),
              FailsWith(kBadFile,
                        "tokens: expected the 1 ids of completion_probabilities, found 1 others"));
  EXPECT_THAT(
      Import("llama.cpp", absl::StrCat(R"({"request": {"prompt": [1, 2]}, "response": )",
                                       R"({"tokens_evaluated": 3, "completion_probabilities": [)",
                                       kEntry, "]}}")),
      FailsWith(kBadFile, "tokens_evaluated: expected 2, the ids of request.prompt, found 3"));
}

TEST_F(RefusesALine, OfVllmWhoseDrawnTokenHasNoLogProb) {
  EXPECT_THAT(Import("vllm", R"({"prompt_token_ids": [1], "outputs": [{"token_ids": [2], )"
                             R"("logprobs": [{"3": {"logprob": -1, "rank": 1}}]}]})"),
              FailsWith(kBadFile,
                        "outputs[0].logprobs[0]: expected an entry for the drawn token 2, "
                        "found none"));
  EXPECT_THAT(Import("vllm", R"({"request": {"prompt": [[1], [2]]}, "response": {"choices": [)"
                             R"({"token_ids": [2], "logprobs": {"token_logprobs": [-1]}}]}})"),
              FailsWith(kBadFile, "expected the ids of one prompt, found several prompts"));
  EXPECT_THAT(Import("vllm", R"({"choices": [{"token_ids": [2], "prompt_token_ids": [1], )"
                             R"("logprobs": {"token_logprobs": [-1, -2]}}]})"),
              FailsWith(kBadFile,
                        "choices[0].logprobs.token_logprobs: expected 1 elements, one for "
                        "each drawn token, found 2"));
}

TEST_F(RefusesALine, OfAnybodyWhoseColumnFitsNeitherAllTokensNorThoseDrawn) {
  EXPECT_THAT(Import("jsonl", R"({"ids": [1, 2, 3, 4], "prompt_length": 2, "lp": [-1, -1, -1]})",
                     {"token_ids=ids", "behaviour_logprobs=lp"}),
              FailsWith(kBadFile,
                        "behaviour_logprobs (lp): expected 4 elements (one for each token) "
                        "or 2 (those behind the prompt), found 3"));
}

TEST_F(RefusesALine, ThatIsNotJson) {
  const std::string path = directory_ / "broken.jsonl";
  ASSERT_THAT(WriteFileAtomically(path,
                                  "{\"token_ids\": [1, 2], \"prompt_length\": 1, "
                                  "\"behaviour_logprobs\": [null, -1]}\n{\"token_ids\": [1,\n"),
              IsOk());
  EXPECT_THAT(ImportRecords({.from = "jsonl", .paths = {path}}),
              FailsWith(kBadFile, "broken.jsonl line 2: not JSON"));
}

TEST(RefusesOptions, ThatNameNothing) {
  EXPECT_THAT(CheckImportOptions({.from = "nemo"}),
              FailsWith(kBadFile, "--from nemo: expected one of nemo-rl, prime-rl, "));
  EXPECT_THAT(CheckImportOptions({.from = "skyr"}), FailsWith(kBadFile, "did you mean skyrl?"));
  EXPECT_THAT(CheckImportOptions({.from = "vllm", .maps = {"token_ids=x"}}),
              FailsWith(kBadFile, "belongs to --from jsonl; the layout of vllm is known"));
  EXPECT_THAT(CheckImportOptions({.from = "jsonl", .maps = {"token_id=x"}}),
              FailsWith(kBadFile, "there is no field token_id; did you mean token_ids?"));
  EXPECT_THAT(CheckImportOptions({.from = "jsonl", .maps = {"token_ids"}}),
              FailsWith(kBadFile, "expected FIELD=their.field"));
  EXPECT_THAT(CheckImportOptions({.from = "vllm", .claims = {"behaviour.temperatur=1"}}),
              FailsWith(kBadFile, "did you mean behaviour.temperature?"));
  EXPECT_THAT(CheckImportOptions({.from = "vllm", .claims = {"behaviour.temperature=hot"}}),
              FailsWith(kBadFile, "behaviour.temperature: expected a number, found hot"));
  EXPECT_THAT(CheckImportOptions({.from = "vllm", .claims = {"behaviour.logprobs=cooked"}}),
              FailsWith(kBadFile, "expected raw or processed, found cooked"));
  EXPECT_THAT(CheckImportOptions({.from = "vllm", .claims = {"temperature"}}),
              FailsWith(kBadFile, "--claim temperature: expected KEY=VALUE"));
  EXPECT_THAT(CheckImportOptions({.from = "vllm",
                                  .claims = {"vocab_size=100", "eos_token_ids=2,3",
                                             "proximal.policy=moving", "behaviour.top_k=-1"}}),
              IsOk());
}

TEST(RefusesPaths, WhereNothingIs) {
  const TempDir directory;
  EXPECT_THAT(ImportRecords({.from = "jsonl", .paths = {directory / "none.jsonl"}}),
              FailsWith(absl::StatusCode::kNotFound, "none.jsonl: no such file or directory"));
  EXPECT_THAT(ImportRecords({.from = "jsonl", .paths = {directory / "*.jsonl"}}),
              FailsWith(absl::StatusCode::kNotFound, "*.jsonl: no file matches"));
  EXPECT_THAT(ImportRecords({.from = "nemo-rl", .paths = {directory / "none.jsonl"}}),
              FailsWith(absl::StatusCode::kNotFound,
                        "no such file or directory; expected train_data_step{N}.jsonl of NeMo-RL "
                        "(docs/foreign_engines.md says how to get them)"));
  EXPECT_THAT(
      ImportRecords({.from = "skyrl", .paths = {directory / "none.pkl"}}),
      FailsWith(absl::StatusCode::kNotFound, "; python/tandem_rl/export/skyrl.py converts"));
  EXPECT_THAT(ImportRecords({.from = "jsonl", .paths = {directory.path()}}),
              FailsWith(absl::StatusCode::kNotFound, ": a directory without files"));
  ASSERT_THAT(WriteFileAtomically(directory / "empty.jsonl", "\n"), IsOk());
  EXPECT_THAT(ImportRecords({.from = "jsonl", .paths = {directory / "empty.jsonl"}}),
              FailsWith(kBadFile,
                        "empty.jsonl: found an empty file: did its writer end early? "
                        "expected anybody's JSON lines, Parquet or safetensors"));
  ASSERT_THAT(WriteFileAtomically(directory / "rows.jsonl.gz", "\x1f\x8b..."), IsOk());
  EXPECT_THAT(ImportRecords({.from = "jsonl", .paths = {directory / "rows.jsonl.gz"}}),
              FailsWith(kBadFile, "a compressed file"));
  ASSERT_THAT(WriteFileAtomically(directory / "notes.txt", "hello"), IsOk());
  EXPECT_THAT(ImportRecords({.from = "jsonl", .paths = {directory / "notes.txt"}}),
              FailsWith(kBadFile,
                        "found a file that begins neither as JSON nor as Parquet or "
                        "safetensors; expected anybody's JSON lines"));
}

}  // namespace
}  // namespace tandem::drift
