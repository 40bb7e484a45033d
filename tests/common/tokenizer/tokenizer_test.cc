#include "common/tokenizer/tokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "common/files/file_system.h"
#include "nlohmann/json.hpp"
#include "tests/support/status_matchers.h"
#include "tests/support/temp_dir.h"

namespace tandem {
namespace {

using Json = nlohmann::json;
using testing::FailsWith;
using ::testing::HasSubstr;
using testing::IsOk;
using testing::TempDir;

const std::string kTestdata = std::string(TANDEM_SOURCE_DIR) + "/tests/testdata/";

std::vector<Json> ReadCases(const std::string& file) {
  std::ifstream in(kTestdata + "golden/" + file);
  std::vector<Json> cases;
  for (std::string line; std::getline(in, line);) cases.push_back(Json::parse(line));
  return cases;
}

const Tokenizer& Named(const std::string& name) {
  static std::map<std::string, std::unique_ptr<Tokenizer>> loaded;
  std::unique_ptr<Tokenizer>& tokenizer = loaded[name];
  if (tokenizer == nullptr) tokenizer = *Tokenizer::Load(kTestdata + name + "-tokenizer");
  return *tokenizer;
}

// A directory with SmolLM2's tokenizer.json and the given other files.
std::unique_ptr<TempDir> DirectoryWith(const std::map<std::string, std::string>& files) {
  auto dir = std::make_unique<TempDir>();
  const std::string json = *ReadFile(kTestdata + "smollm2-tokenizer/tokenizer.json");
  std::ofstream(*dir / "tokenizer.json") << json;
  for (const auto& [name, text] : files) std::ofstream(*dir / name) << text;
  return dir;
}

std::string Render(const std::string& chat_template, const std::string& messages) {
  const auto dir = DirectoryWith({{"chat_template.jinja", chat_template}});
  const auto tokenizer = Tokenizer::Load(dir->path());
  if (!tokenizer.ok()) return tokenizer.status().ToString();
  const auto text = (*tokenizer)->RenderChat(messages, false);
  return text.ok() ? *text : text.status().ToString();
}

constexpr char kHello[] = R"([{"role":"user","content":"hi"}])";

TEST(Tokenizer, EncodesEveryGoldenCaseToTheSameIds) {
  const std::vector<Json> cases = ReadCases("tokenizer_cases.jsonl");
  ASSERT_EQ(cases.size(), 220u);
  for (const Json& c : cases) {
    const auto ids = Named(c["tokenizer"]).Encode(c["text"].get<std::string>());
    ASSERT_THAT(ids, IsOk());
    EXPECT_EQ(Json(*ids), c["ids"]) << c["text"];
  }
}

TEST(Tokenizer, DecodesEveryGoldenCaseToTheSameText) {
  for (const Json& c : ReadCases("tokenizer_cases.jsonl")) {
    const auto text = Named(c["tokenizer"]).Decode(c["ids"].get<std::vector<int32_t>>(), false);
    ASSERT_THAT(text, IsOk());
    EXPECT_EQ(*text, c.value("decoded", c["text"].get<std::string>()));
  }
}

TEST(Tokenizer, RendersEveryGoldenChatToTheSameText) {
  const std::vector<Json> cases = ReadCases("chat_cases.jsonl");
  ASSERT_EQ(cases.size(), 40u);
  for (const Json& c : cases) {
    const Tokenizer& tokenizer = Named(c["tokenizer"]);
    const auto text = tokenizer.RenderChat(c["messages"].dump(), c["add_generation_prompt"]);
    ASSERT_THAT(text, IsOk());
    EXPECT_EQ(*text, c["text"]);
    const auto ids = tokenizer.Encode(*text);
    ASSERT_THAT(ids, IsOk());
    EXPECT_EQ(Json(*ids), c["ids"]);
  }
}

TEST(Tokenizer, KnowsItsVocabularyAndEndToken) {
  EXPECT_EQ(Named("smollm2").vocab_size(), 49152);
  EXPECT_EQ(Named("smollm2").eos_token_id(), 2);
  EXPECT_TRUE(Named("smollm2").has_chat_template());
  EXPECT_EQ(Named("smollm2").hash().size(), 32u);
}

TEST(Tokenizer, DropsSpecialTokensWhenAsked) {
  const std::vector<int32_t> ids = *Named("smollm2").Encode("<|im_start|>hi<|im_end|>");
  EXPECT_EQ(ids.front(), 1);
  EXPECT_EQ(ids.back(), 2);
  EXPECT_EQ(*Named("smollm2").Decode(ids, true), "hi");
}

TEST(Tokenizer, DecodesAPartOfACharacterAsReplacement) {
  const std::vector<int32_t> ids = *Named("smollm2").Encode("\xF0\x9F\xA6\xA9");  // a flamingo
  ASSERT_GT(ids.size(), 1u);
  const auto text = Named("smollm2").Decode(std::span(ids).first(1), false);
  EXPECT_EQ(*text, "\xEF\xBF\xBD");
}

TEST(Tokenizer, EncodesAndDecodesNothing) {
  EXPECT_TRUE(Named("smollm2").Encode("")->empty());
  EXPECT_EQ(*Named("smollm2").Decode({}, false), "");
}

TEST(Tokenizer, RefusesTextThatIsNotUtf8) {
  EXPECT_THAT(Named("smollm2").Encode("ab\xFF"),
              FailsWith(absl::StatusCode::kInvalidArgument, "invalid byte at 2"));
}

TEST(Tokenizer, RefusesIdsOutsideTheVocabulary) {
  for (const int32_t id : {-1, 49152}) {
    EXPECT_THAT(Named("smollm2").Decode(std::vector<int32_t>{5, id}, false),
                FailsWith(absl::StatusCode::kInvalidArgument, "at index 1 is not in the vocab"));
  }
}

TEST(Tokenizer, EncodesTheSameOnManyThreads) {
  const Tokenizer& tokenizer = Named("smollm2");
  const std::vector<int32_t> expected = *tokenizer.Encode("many threads, one tokenizer");
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      for (int k = 0; k < 50; ++k) {
        EXPECT_EQ(*tokenizer.Encode("many threads, one tokenizer"), expected);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST(TokenizerLoad, NamesTheMissingFile) {
  const TempDir dir;
  EXPECT_THAT(Tokenizer::Load(dir.path()),
              FailsWith(absl::StatusCode::kNotFound, "tokenizer.json"));
}

TEST(TokenizerLoad, NamesTheFileThatDoesNotParse) {
  const TempDir dir;
  std::ofstream(dir / "tokenizer.json") << "{";
  EXPECT_THAT(Tokenizer::Load(dir.path()),
              FailsWith(absl::StatusCode::kInvalidArgument, "tokenizer.json: "));
  EXPECT_THAT(Tokenizer::Load(DirectoryWith({{"tokenizer_config.json", "["}})->path()),
              FailsWith(absl::StatusCode::kInvalidArgument, "tokenizer_config.json: "));
  EXPECT_THAT(Tokenizer::Load(DirectoryWith({{"chat_template.jinja", "\n{% if %}"}})->path()),
              FailsWith(absl::StatusCode::kInvalidArgument, "chat_template.jinja: "));
}

TEST(TokenizerLoad, PrefersTheTemplateFileToTheConfiguration) {
  const auto dir = DirectoryWith({{"chat_template.jinja", "file"},
                                  {"tokenizer_config.json", R"({"chat_template": "config"})"}});
  EXPECT_EQ(*(*Tokenizer::Load(dir->path()))->RenderChat(kHello, false), "file");
}

TEST(TokenizerLoad, TakesTheDefaultOfNamedTemplates) {
  const auto dir = DirectoryWith({{"tokenizer_config.json",
                                   R"({"chat_template": [{"name": "tool_use", "template": "tools"},
                                       {"name": "default", "template": "plain"}]})"}});
  EXPECT_EQ(*(*Tokenizer::Load(dir->path()))->RenderChat(kHello, false), "plain");
}

TEST(TokenizerChat, IsRefusedWithoutATemplate) {
  const auto dir = DirectoryWith({});
  const auto tokenizer = *Tokenizer::Load(dir->path());
  EXPECT_FALSE(tokenizer->has_chat_template());
  EXPECT_EQ(tokenizer->eos_token_id(), -1);
  EXPECT_THAT(tokenizer->RenderChat(kHello, false),
              FailsWith(absl::StatusCode::kUnimplemented, "no chat template"));  // exit code 3
}

TEST(TokenizerChat, RefusesBadMessages) {
  for (const char* const messages : {"", "[", "{}", "[]", "[1]", R"([{"content":"x"}])"}) {
    EXPECT_THAT(Named("smollm2").RenderChat(messages, false),
                FailsWith(absl::StatusCode::kInvalidArgument, "message"))
        << messages;
  }
}

TEST(TokenizerChat, ReportsWhatTheTemplateRaised) {
  EXPECT_THAT(Render("{{ raise_exception('roles must alternate') }}", kHello),
              HasSubstr("roles must alternate"));
}

TEST(TokenizerChat, StopsAnEndlessTemplate) {
  EXPECT_THAT(Render("{% for a in range(9999) %}{% for b in range(9999) %}{% endfor %}{% endfor %}",
                     kHello),
              HasSubstr("more than 2000000 steps"));
}

TEST(TokenizerChat, StopsAHugeOutput) {
  EXPECT_THAT(Render("{% for a in range(90) %}{{ 'x' * 60000 }}{% endfor %}", kHello),
              HasSubstr("more than 4 MiB"));
}

TEST(TokenizerChat, RefusesANamespaceInANamespaceAndValuesThatGrow) {
  EXPECT_THAT(Render("{% set ns = namespace(n=0) %}{% set ns.n = ns %}{{ ns.n }}", kHello),
              HasSubstr("a namespace cannot be set on a namespace"));
  EXPECT_THAT(
      Render("{% set ns = namespace(n=0) %}{% set ns.n = [ns]|reverse %}{{ ns.n }}", kHello),
      HasSubstr("a namespace cannot be set on a namespace"));
  for (const char* const grown : {"ns.y ~ ns.y", "[ns.y]", "[ns.y, ns.y]"}) {
    EXPECT_THAT(Render(std::string("{% set ns = namespace(y='ab') %}{% for i in range(40) %}"
                                   "{% set ns.y = ") +
                           grown + " %}{% endfor %}{{ ns.y }}",
                       kHello),
                HasSubstr("nests deeper than 16 or is larger than 1 MiB"))
        << grown;
  }
}

TEST(TokenizerChat, ValuesOfANamespaceAreWhatWasSet) {
  const std::string open = "{% set ns = namespace(n=0) %}";
  EXPECT_EQ(
      Render(open +
                 "{% for i in range(4) %}{% set ns.n = ns.n + i if i > 1 else ns.n %}{% endfor %}"
                 "{{ ns.n }}",
             kHello),
      "5");
  EXPECT_EQ(Render(open + "{%- set ns.a = [1, 2] | length -%}{{ ns.a }}", kHello), "2");
  EXPECT_EQ(Render(open + "{% set ns.t = 1, 2 %}{{ ns.t[1] }}", kHello), "2");
  EXPECT_EQ(Render(open + "{% set ns.s = '%}' %}{{ ns.s }}", kHello), "%}");
  EXPECT_EQ(Render(open + "{% set ns.m = messages[0] %}{{ ns.m.role }}{{ ns.m | tojson }}", kHello),
            R"(user{"role": "user", "content": "hi"})");
  EXPECT_EQ(Render(open + "{% raw %}{% set ns.n = 1 %}{% endraw %}{{ ns.n }}", kHello),
            "{% set ns.n = 1 %}0");
}

// Expected texts are those of transformers 5.23 for the same template.
TEST(TokenizerChat, RendersAsTransformersDoes) {
  EXPECT_EQ(Render("{{ messages[0] | tojson }}", R"([{"role":"user","content":"<a> é"}])"),
            R"({"role": "user", "content": "<a> é"})");
  EXPECT_EQ(Render("{{ messages[0] | tojson(indent=2) }}", kHello),
            "{\n  \"role\": \"user\",\n  \"content\": \"hi\"\n}");
  EXPECT_EQ(Render("{{ messages[0] | tojson(ensure_ascii=True, sort_keys=True) }}",
                   R"([{"role":"user","content":"é"}])"),
            R"({"content": "\u00e9", "role": "user"})");
  EXPECT_EQ(Render("{{ true }} {{ none }} {{ tools is none }}", kHello), "True None True");
  EXPECT_EQ(Render("  {% if true %}\nx\n  {% endif %}\ny", kHello), "x\ny");
  EXPECT_EQ(Render("{{ messages[0]['content'].upper().startswith('HI') }}", kHello), "True");
  EXPECT_EQ(
      Render("{% for i in range(9) %}{% if i == 3 %}{% break %}{% endif %}{{ i }}{% endfor %}",
             kHello),
      "012");
  EXPECT_EQ(Render("{% generation %}a{% endgeneration %}{{ strftime_now('%Y') | length }}", kHello),
            "a4");
}

TEST(TokenizerTraining, GivesATokenizerThatRoundTripsAnyText) {
  const auto json = Tokenizer::TrainByteLevelBpe("the cat and the hat and the bat 1234", 270);
  ASSERT_THAT(json, IsOk());
  const TempDir dir;
  std::ofstream(dir / "tokenizer.json") << *json;
  const auto tokenizer = Tokenizer::Load(dir.path());
  ASSERT_THAT(tokenizer, IsOk());
  EXPECT_EQ((*tokenizer)->vocab_size(), 270);
  const std::vector<int32_t> ids = *(*tokenizer)->Encode("<|endoftext|><|im_start|><|im_end|>");
  EXPECT_THAT(ids, ::testing::ElementsAre(0, 1, 2));
  const std::string text = "the dog \xF0\x9F\x90\xB6 12\n";
  EXPECT_EQ(*(*tokenizer)->Decode(*(*tokenizer)->Encode(text), false), text);
  EXPECT_EQ((*tokenizer)->Encode("1234")->size(), 4u);  // digits one by one
}

TEST(TokenizerTraining, RefusesTooFewTokensAndNoText) {
  EXPECT_THAT(Tokenizer::TrainByteLevelBpe("text", 258),
              FailsWith(absl::StatusCode::kInvalidArgument, "258 is not in [259,"));
  EXPECT_THAT(Tokenizer::TrainByteLevelBpe("text", 259), IsOk());
  EXPECT_THAT(Tokenizer::TrainByteLevelBpe("", 300),
              FailsWith(absl::StatusCode::kInvalidArgument, "empty"));
}

}  // namespace
}  // namespace tandem
