#include "trainer/foreign/vllm_messages.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "common/weights/digest.h"
#include "tests/support/status_matchers.h"

namespace tandem::trainer {
namespace {

using absl::StatusCode::kAborted;
using absl::StatusCode::kDataLoss;
using nlohmann::json;
using ::tandem::testing::FailsWith;
using ::tandem::testing::IsOk;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

rollout::v1::GenerateGroupRequest AskedGroup() {
  rollout::v1::GenerateGroupRequest request;
  request.add_prompt_token_ids(7);
  request.add_prompt_token_ids(8);
  request.set_num_completions(2);
  request.mutable_sampling()->set_temperature(0.5f);
  request.mutable_sampling()->set_max_new_tokens(4);
  request.mutable_sampling()->set_seed(40);
  return request;
}

json ChoiceOf(const char* finish) {
  return {{"text", "ab"},
          {"finish_reason", finish},
          {"stop_reason", nullptr},
          {"token_ids", {5, 6}},
          {"logprobs", {{"token_logprobs", {-0.5, -0.25}}}}};
}

std::string AnswerOf(const std::vector<json>& choices) { return json{{"choices", choices}}.dump(); }

TEST(VllmMessages, ARequestSetsEverySamplingParameterSoThatTheServerFillsNoneIn) {
  const json body = json::parse(CompletionBody("m", AskedGroup(), /*greedy=*/false));
  EXPECT_EQ(body["model"], "m");
  EXPECT_EQ(body["prompt"], (std::vector<int>{7, 8}));
  EXPECT_EQ(body["n"], 2);
  EXPECT_EQ(body["temperature"], 0.5);
  EXPECT_EQ(body["top_k"], -1);
  EXPECT_EQ(body["top_p"], 1.0);
  EXPECT_EQ(body["min_p"], 0.0);
  EXPECT_EQ(body["repetition_penalty"], 1.0);
  EXPECT_EQ(body["seed"], 10) << "a quarter: the server adds the completion's index";
  EXPECT_EQ(body["logprobs"], 0);
  EXPECT_EQ(body["return_token_ids"], true);
}

TEST(VllmMessages, AGreedyBaselineIsOneCompletionWithoutTemperatureAndFilters) {
  rollout::v1::GenerateGroupRequest request = AskedGroup();
  request.mutable_sampling()->set_top_k(3);
  EXPECT_EQ(json::parse(CompletionBody("m", request, false))["top_k"], 3);
  const json body = json::parse(CompletionBody("m", request, /*greedy=*/true));
  EXPECT_EQ(body["n"], 1);
  EXPECT_EQ(body["temperature"], 0.0);
  EXPECT_EQ(body["top_k"], -1);
}

TEST(VllmMessages, CompletionsHaveWhatTheServerSaysAndNothingElse) {
  const auto read =
      ReadCompletions(AskedGroup(), false, 3, AnswerOf({ChoiceOf("stop"), ChoiceOf("length")}));
  ASSERT_THAT(read, IsOk());
  const rollout::v1::Completion& first = (*read)[0];
  EXPECT_EQ(first.index(), 0);
  EXPECT_THAT(first.token_ids(), ElementsAre(5, 6));
  EXPECT_THAT(first.behaviour_logprobs(), ElementsAre(-0.5f, -0.25f));
  EXPECT_THAT(first.raw_logprobs(), IsEmpty());
  EXPECT_THAT(first.entropies(), IsEmpty());
  EXPECT_THAT(first.kept_mass(), IsEmpty());
  EXPECT_EQ(first.text(), "ab");
  EXPECT_EQ(first.finish_reason(), rollout::v1::FINISH_REASON_STOP);
  EXPECT_EQ(first.version_spans(0).weight_version(), 3);
  EXPECT_EQ(first.version_spans(0).num_tokens(), 2);
  EXPECT_EQ(first.token_hash(), HashTokenIds(std::vector<int32_t>{5, 6}));
  EXPECT_EQ((*read)[1].index(), 1);
  EXPECT_EQ((*read)[1].finish_reason(), rollout::v1::FINISH_REASON_LENGTH);
}

TEST(VllmMessages, AGreedyBaselineComesAfterTheOthersWithRawLogProbs) {
  const auto read = ReadCompletions(AskedGroup(), true, 0, AnswerOf({ChoiceOf("stop")}));
  ASSERT_THAT(read, IsOk());
  EXPECT_EQ((*read)[0].index(), 2);
  EXPECT_TRUE((*read)[0].greedy());
  EXPECT_THAT((*read)[0].raw_logprobs(), ElementsAre(-0.5f, -0.25f));
}

TEST(VllmMessages, IdsAreReadFromTheirTextsWhereTheServerKnowsNoIds) {
  json choice = ChoiceOf("stop");
  choice.erase("token_ids");
  choice["logprobs"]["tokens"] = {"token_id:9", "token_id:2"};
  const auto read = ReadCompletions(AskedGroup(), true, 0, AnswerOf({choice}));
  ASSERT_THAT(read, IsOk());
  EXPECT_THAT((*read)[0].token_ids(), ElementsAre(9, 2));
  choice["logprobs"]["tokens"] = {"hel", "lo"};
  EXPECT_THAT(ReadCompletions(AskedGroup(), true, 0, AnswerOf({choice})),
              FailsWith(kDataLoss, "return_token_ids"));
}

TEST(VllmMessages, AStopStringIsToldFromAnEndToken) {
  json choice = ChoiceOf("stop");
  choice["stop_reason"] = "\n\n";
  const auto read = ReadCompletions(AskedGroup(), true, 0, AnswerOf({choice}));
  ASSERT_THAT(read, IsOk());
  EXPECT_EQ((*read)[0].finish_reason(), rollout::v1::FINISH_REASON_STOP_STRING);
}

TEST(VllmMessages, CompletionsThatAPushEndedAreAskedForAgain) {
  EXPECT_THAT(ReadCompletions(AskedGroup(), true, 0, AnswerOf({ChoiceOf("abort")})),
              FailsWith(kAborted, "before their end"));
}

TEST(VllmMessages, AnAnswerWithoutLogProbsOrWithSentinelsIsRefused) {
  json choice = ChoiceOf("stop");
  choice["logprobs"] = nullptr;
  EXPECT_THAT(ReadCompletions(AskedGroup(), true, 0, AnswerOf({choice})),
              FailsWith(kDataLoss, "2 token ids with 0 log-probs"));
  choice["logprobs"] = {{"token_logprobs", {-9999.0, -0.25}}};
  EXPECT_THAT(ReadCompletions(AskedGroup(), true, 0, AnswerOf({choice})),
              FailsWith(kDataLoss, "-9999"));
  choice["logprobs"] = {{"token_logprobs", {nullptr, -0.25}}};
  EXPECT_THAT(ReadCompletions(AskedGroup(), true, 0, AnswerOf({choice})),
              FailsWith(kDataLoss, "null"));
  EXPECT_THAT(ReadCompletions(AskedGroup(), false, 0, AnswerOf({ChoiceOf("stop")})),
              FailsWith(kDataLoss, "1 choices, want 2"));
  EXPECT_THAT(ReadCompletions(AskedGroup(), false, 0, R"({"choices": [NaN)"),
              FailsWith(kDataLoss, "not JSON"));
}

TEST(VllmMessages, ScoresAreOfTheIdsThatWereAsked) {
  const std::vector<int32_t> ids = {4, 9, 7};
  const std::string answer =
      AnswerOf({{{"prompt_logprobs",
                  {nullptr,
                   {{"9", {{"logprob", -1.5}}}},
                   {{"3", {{"logprob", -0.1}}}, {"7", {{"logprob", -2.5}}}}}}}});
  const auto scores = ReadScores(ids, answer);
  ASSERT_THAT(scores, IsOk());
  EXPECT_THAT(*scores, ElementsAre(0, -1.5f, -2.5f));
  EXPECT_THAT(ReadScores(std::vector<int32_t>{4, 9, 8}, answer), FailsWith(kDataLoss, "id 8"));
  EXPECT_THAT(ReadScores(std::vector<int32_t>{4, 9}, answer), FailsWith(kDataLoss, "3 entries"));
}

TEST(VllmMessages, FactsComeFromThreeAnswersOfWhichOnlyTheModelsAreNeeded) {
  const std::string models = R"({"data":[{"id":"m","root":"/m","max_model_len":64}]})";
  const auto facts = ReadFacts(
      R"({"version":"0.32.0"})", models,
      R"({"vllm_config":{"model_config":{"dtype":"torch.bfloat16","logprobs_mode":"raw_logprobs"}}})");
  ASSERT_THAT(facts, IsOk());
  EXPECT_EQ(facts->version, "0.32.0");
  EXPECT_EQ(facts->model, "m");
  EXPECT_EQ(facts->max_model_len, 64);
  EXPECT_EQ(facts->dtype, "bfloat16");
  EXPECT_EQ(facts->logprobs_mode, "raw_logprobs");
  const auto few = ReadFacts("", models, R"({"vllm_config":"a text"})");
  ASSERT_THAT(few, IsOk());
  EXPECT_EQ(few->dtype, "");
  EXPECT_THAT(ReadFacts("", R"({"data":[]})", ""), FailsWith(kDataLoss, "names no model"));
}

}  // namespace
}  // namespace tandem::trainer
