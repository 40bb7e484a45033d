#include "cli/compare/engine_spec.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/status_matchers.h"

namespace tandem::cli {
namespace {

using ::tandem::testing::FailsWith;
using ::tandem::testing::IsOk;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

TEST(EngineSpecTest, ReadsNameDtypeAndOptions) {
  const auto spec = ParseEngineSpec("vllm:bf16:max_model_len=256:kv_gib=2");
  ASSERT_THAT(spec, IsOk());
  EXPECT_EQ(spec->name, "vllm");
  EXPECT_EQ(spec->dtype, "bf16");
  EXPECT_THAT(spec->options, ElementsAre("max_model_len=256", "kv_gib=2"));
}

TEST(EngineSpecTest, TakesAModelOfOneSideFromEveryEngine) {
  const auto spec = ParseEngineSpec("vllm:bf16:model=/models/late:kv_gib=2");
  ASSERT_THAT(spec, IsOk());
  EXPECT_EQ(spec->model, "/models/late");
  EXPECT_THAT(spec->options, ElementsAre("kv_gib=2"));
  EXPECT_EQ(ParseEngineSpec("tandem:bf16:model=late")->model, "late");
  EXPECT_EQ(ParseEngineSpec("tandem")->model, "");
}

TEST(EngineSpecTest, HasShortWordsForAttentionAndExactNumerics) {
  EXPECT_THAT(ParseEngineSpec("transformers:bf16:eager")->options, ElementsAre("attn=eager"));
  const auto exact = ParseEngineSpec("tandem:exact");
  ASSERT_THAT(exact, IsOk());
  EXPECT_TRUE(exact->exact);
  EXPECT_EQ(exact->dtype, "");
  EXPECT_THAT(exact->options, IsEmpty());
  EXPECT_FALSE(ParseEngineSpec("tandem:fp32")->exact);
}

TEST(EngineSpecTest, TakesAUrlAsAServer) {
  const auto spec = ParseEngineSpec("http://127.0.0.1:8000");
  ASSERT_THAT(spec, IsOk());
  EXPECT_EQ(spec->name, "openai_http");
  EXPECT_THAT(spec->options, ElementsAre("url=http://127.0.0.1:8000"));
  EXPECT_THAT(ParseEngineSpec("sglang+http://host:1")->options,
              ElementsAre("url=http://host:1", "server=sglang"));
}

TEST(EngineSpecTest, RefusesWhatItDoesNotKnowAndSaysWhatThereIs) {
  EXPECT_THAT(ParseEngineSpec("sgl"), FailsWith(absl::StatusCode::kInvalidArgument,
                                                "tandem, transformers, vllm, llama_cpp"));
  EXPECT_THAT(ParseEngineSpec("tandem:q8_0"),
              FailsWith(absl::StatusCode::kInvalidArgument, "`q8_0` is not a dtype of it"));
  EXPECT_THAT(ParseEngineSpec("tandem:bf16:nope=1"),
              FailsWith(absl::StatusCode::kInvalidArgument,
                        "engine tandem:bf16:nope=1: `nope=1` is not a dtype of it and no option; "
                        "after `tandem:` may stand fp32, bf16, exact, model=DIR"));
  EXPECT_THAT(ParseEngineSpec("llama_cpp:q2"),
              FailsWith(absl::StatusCode::kInvalidArgument,
                        "f32, bf16, f16, q8_0, q4_K, gguf=FILE, cache=FOLDER"));
  // It is what a URL stands for: by name it would have none.
  EXPECT_THAT(ParseEngineSpec("openai_http"), FailsWith(absl::StatusCode::kInvalidArgument,
                                                        "vllm, llama_cpp and http://HOST:PORT"));
}

TEST(EngineSpecTest, SaysHowAnEngineIsInstalledThatIsNotThere) {
  EXPECT_THAT(FindEnginePython(*ParseEngineSpec("vllm"), "/nowhere/python"),
              FailsWith(absl::StatusCode::kNotFound, "deploy/setup/install.sh --engines"));
}

}  // namespace
}  // namespace tandem::cli
