#include "common/options/options.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "common/files/file_system.h"
#include "tests/support/status_matchers.h"
#include "tests/support/temp_dir.h"

namespace tandem {
namespace {

using ::testing::ElementsAre;
using testing::FailsWith;
using ::testing::HasSubstr;
using testing::IsOk;
using ::testing::Pair;

enum class Kind { kOff, kTokenTis };

TEST(NumberRangeTest, ABoundCanBeOutsideOfIt) {
  double value = 0.5;
  OptionBinder binder;
  binder.Number("beta", &value, {.min = 0, .max = 1, .exclusive_max = true}, "", "a decay");
  EXPECT_THAT(binder.LoadString("beta: 0", "run.yaml"), IsOk());
  EXPECT_THAT(
      binder.LoadString("beta: 1", "run.yaml"),
      FailsWith(absl::StatusCode::kInvalidArgument, "beta: 1 is out of range: must be in [0, 1)"));
  EXPECT_EQ(value, 0);
}

struct Settings {
  std::string out = "runs";
  double max_weight = 2.0;
  Kind kind = Kind::kTokenTis;
  bool deterministic = false;
  int64_t steps = 10;
  std::vector<std::string> servers = {"127.0.0.1:1"};
  std::vector<std::pair<std::string, double>> rewards;
};

class OptionBinderTest : public ::testing::Test {
 protected:
  OptionBinderTest() { Bind(binder_, settings_); }

  static void Bind(OptionBinder& binder, Settings& settings) {
    binder.Text("out", &settings.out, "where the run goes");
    binder.Section("correction", "stage 6", [&](OptionBinder& b) {
      b.Number("max_weight", &settings.max_weight, {.min = 1}, "", "ceiling on one token's weight");
      b.Choice<Kind>("kind", &settings.kind, {{"off", Kind::kOff}, {"token_tis", Kind::kTokenTis}},
                     "which correction");
    });
    binder.Section("trainer", "the train loop", [&](OptionBinder& b) {
      b.Integer("steps", &settings.steps, {.min = 0, .max = 100}, "train steps",
                "how many | in all");
      b.Flag("deterministic", &settings.deterministic, "same seed, same run");
      b.TextList("servers", &settings.servers, "addresses");
      b.Section("reward", "stage 3",
                [&](OptionBinder& r) { r.NumberMap("weights", &settings.rewards, "by name"); });
    });
    binder.Ignore("rollout_server");
  }

  absl::Status Load(const std::string& yaml) { return binder_.LoadString(yaml, "run.yaml"); }

  OptionBinder binder_;
  Settings settings_;
};

TEST_F(OptionBinderTest, ReadsEveryKindOfOption) {
  ASSERT_THAT(Load("out: \"a b\"\n"
                   "correction: {max_weight: 3.5, kind: off}\n"
                   "trainer:\n"
                   "  steps: 7\n"
                   "  deterministic: true\n"
                   "  servers: [\"h:1\", h2]\n"
                   "  reward:\n"
                   "    weights: {exact: 1, length: -0.25}\n"
                   "rollout_server:\n"
                   "  anything: [1, 2]\n"),
              IsOk());
  EXPECT_EQ(settings_.out, "a b");
  EXPECT_EQ(settings_.max_weight, 3.5);
  EXPECT_EQ(settings_.kind, Kind::kOff);
  EXPECT_EQ(settings_.steps, 7);
  EXPECT_TRUE(settings_.deterministic);
  EXPECT_THAT(settings_.servers, ElementsAre("h:1", "h2"));
  EXPECT_THAT(settings_.rewards, ElementsAre(Pair("exact", 1.0), Pair("length", -0.25)));
}

// python: a.py:f  stands for  python: {functions: [a.py:f]}.
TEST(OptionBinderShorthand, OneOptionStandsInThePlaceOfItsSection) {
  std::vector<std::string> functions;
  std::vector<std::pair<std::string, std::string>> kwargs;
  OptionBinder binder;
  binder.Section("python", "functions", [&](OptionBinder& b) {
    b.OneOrMoreTexts("functions", &functions, "by name");
    b.Shorthand("functions");
    b.TextMap("kwargs", &kwargs, "by name");
  });
  const auto load = [&](const std::string& yaml) { return binder.LoadString(yaml, "run.yaml"); };
  for (const char* const one :
       {"python: a.py:f\n", "python: [a.py:f]\n", "python: {functions: a.py:f}\n",
        "python: {functions: [a.py:f]}\n"}) {
    functions.clear();
    ASSERT_THAT(load(one), IsOk()) << one;
    EXPECT_THAT(functions, ElementsAre("a.py:f")) << one;
  }
  EXPECT_THAT(binder.Set("python=b.py:g"), IsOk());
  EXPECT_THAT(functions, ElementsAre("b.py:g"));
  EXPECT_THAT(binder.Set("python=[b.py:g, c.py:h]"), IsOk());
  EXPECT_THAT(functions, ElementsAre("b.py:g", "c.py:h"));
  ASSERT_THAT(load("python: {kwargs: {f.size: 3, kind: x}}\n"), IsOk());
  EXPECT_THAT(kwargs, ElementsAre(Pair("f.size", "3"), Pair("kind", "x")));
  EXPECT_THAT(load("python: {kwargs: 3}\n"),
              FailsWith(absl::StatusCode::kInvalidArgument, "expected a mapping, {name: text}"));
  const std::string resolved = binder.ToYaml();
  functions.clear();
  ASSERT_THAT(load(resolved), IsOk()) << resolved;
  EXPECT_THAT(functions, ElementsAre("b.py:g", "c.py:h"));
}

TEST_F(OptionBinderTest, KeepsDefaultsForAnEmptyFileAndAnEmptySection) {
  EXPECT_THAT(Load(""), IsOk());
  EXPECT_THAT(Load("correction:\n"), IsOk());
  EXPECT_EQ(settings_.max_weight, 2.0);
}

TEST_F(OptionBinderTest, NamesFileLineAndNearestNameOfAnUnknownKey) {
  const absl::Status status = Load("out: x\ncorrection:\n  max_wieght: 3\n");
  EXPECT_THAT(status, FailsWith(absl::StatusCode::kInvalidArgument,
                                "run.yaml:3: unknown key 'correction.max_wieght'; the nearest "
                                "valid name is 'correction.max_weight'"));
}

TEST_F(OptionBinderTest, NamesTheRightSectionOfAMisplacedKey) {
  EXPECT_THAT(Load("max_weight: 3\n"),
              FailsWith(absl::StatusCode::kInvalidArgument, "is 'correction.max_weight'"));
}

TEST_F(OptionBinderTest, RefusesAWrongTypeAtItsLine) {
  EXPECT_THAT(Load("trainer:\n  steps: many\n"),
              FailsWith(absl::StatusCode::kInvalidArgument,
                        "run.yaml:2: trainer.steps: 'many' is not an integer"));
  EXPECT_THAT(Load("trainer:\n  steps: 1.5\n"),
              FailsWith(absl::StatusCode::kInvalidArgument, "'1.5' is not an integer"));
  EXPECT_THAT(Load("trainer:\n  steps: \"3\"\n"),
              FailsWith(absl::StatusCode::kInvalidArgument, "in quotes"));
  EXPECT_THAT(Load("trainer:\n  deterministic: yes\n"),
              FailsWith(absl::StatusCode::kInvalidArgument, "'yes' is not true or false"));
  EXPECT_THAT(Load("correction: {max_weight: nan}\n"),
              FailsWith(absl::StatusCode::kInvalidArgument, "'nan' is not a number"));
  EXPECT_THAT(Load("correction: 3\n"),
              FailsWith(absl::StatusCode::kInvalidArgument, "'correction' is a section"));
  EXPECT_THAT(Load("trainer: {servers: one}\n"),
              FailsWith(absl::StatusCode::kInvalidArgument, "expected a list"));
  EXPECT_THAT(Load("out:\n"), FailsWith(absl::StatusCode::kInvalidArgument, "found nothing"));
}

TEST_F(OptionBinderTest, RefusesAValueOutOfRangeAndStatesTheRange) {
  EXPECT_THAT(Load("correction:\n  max_weight: 0.5\n"),
              FailsWith(absl::StatusCode::kInvalidArgument,
                        "run.yaml:2: correction.max_weight: 0.5 is out of range: must be >= 1"));
  EXPECT_THAT(Load("trainer: {steps: 101}\n"),
              FailsWith(absl::StatusCode::kInvalidArgument, "must be in [0, 100]"));
}

TEST_F(OptionBinderTest, RefusesAnUnknownSpellingAndNamesTheNearest) {
  EXPECT_THAT(Load("correction: {kind: token_its}\n"),
              FailsWith(absl::StatusCode::kInvalidArgument,
                        "'token_its' is not one of off, token_tis; the nearest is 'token_tis'"));
}

TEST_F(OptionBinderTest, RefusesANameGivenTwice) {
  EXPECT_THAT(Load("out: a\nout: b\n"),
              FailsWith(absl::StatusCode::kInvalidArgument, "run.yaml:2: 'out' is given twice"));
  EXPECT_THAT(Load("trainer: {reward: {weights: {a: 1, a: 2}}}\n"),
              FailsWith(absl::StatusCode::kInvalidArgument, "weights.a' is given twice"));
}

TEST_F(OptionBinderTest, NamesTheLineOfASyntaxError) {
  EXPECT_THAT(Load("out: x\ncorrection: {max_weight: 3\n"),
              FailsWith(absl::StatusCode::kInvalidArgument, "run.yaml:"));
  EXPECT_THAT(Load("a: 1\n---\nb: 2\n"),
              FailsWith(absl::StatusCode::kInvalidArgument, "second YAML document"));
}

TEST_F(OptionBinderTest, SetsOneOptionFromTheCommandLine) {
  EXPECT_THAT(binder_.Set("correction.max_weight=3"), IsOk());
  EXPECT_THAT(binder_.Set("out=a: {b} # c"), IsOk());
  EXPECT_THAT(binder_.Set("trainer.servers=[a, b]"), IsOk());
  EXPECT_THAT(binder_.Set("rollout_server.port=1"), IsOk());
  EXPECT_EQ(settings_.max_weight, 3);
  EXPECT_EQ(settings_.out, "a: {b} # c");
  EXPECT_THAT(settings_.servers, ElementsAre("a", "b"));
}

TEST_F(OptionBinderTest, NamesTheAssignmentThatCannotBeSet) {
  EXPECT_THAT(binder_.Set("correction.max_weight=0"),
              FailsWith(absl::StatusCode::kInvalidArgument,
                        "--set correction.max_weight=0: correction.max_weight: 0 is out of range"));
  EXPECT_THAT(binder_.Set("corection.kind=off"),
              FailsWith(absl::StatusCode::kInvalidArgument, "is 'correction.kind'"));
  EXPECT_THAT(binder_.Set("correction=1"),
              FailsWith(absl::StatusCode::kInvalidArgument, "is a section"));
  EXPECT_THAT(binder_.Set("steps"), FailsWith(absl::StatusCode::kInvalidArgument, "name=value"));
}

TEST_F(OptionBinderTest, PrintsWhatItReadsBackToTheSameValues) {
  settings_ = {.out = "a \"b\"\n: #\x01 null",
               .max_weight = 1.1,
               .kind = Kind::kOff,
               .deterministic = true,
               .steps = 3,
               .servers = {"", "null", "h:1", "x, y]"},
               .rewards = {{"exact match", 0.1}, {"length", -1e-9}}};
  Settings copy;
  OptionBinder reader;
  Bind(reader, copy);
  const std::string yaml = binder_.ToYaml();
  ASSERT_THAT(reader.LoadString(yaml, "printed"), IsOk()) << yaml;
  EXPECT_EQ(copy.out, settings_.out);
  EXPECT_EQ(copy.max_weight, settings_.max_weight);
  EXPECT_EQ(copy.kind, settings_.kind);
  EXPECT_EQ(copy.steps, settings_.steps);
  EXPECT_EQ(copy.servers, settings_.servers);
  EXPECT_EQ(copy.rewards, settings_.rewards);
  EXPECT_EQ(reader.ToYaml(), yaml);
}

TEST_F(OptionBinderTest, PrintsSectionsNestedInTheOrderTheyWereBound) {
  EXPECT_EQ(binder_.ToYaml(),
            "out: runs\n"
            "correction:\n"
            "  max_weight: 2\n"
            "  kind: token_tis\n"
            "trainer:\n"
            "  steps: 10\n"
            "  deterministic: false\n"
            "  servers: [\"127.0.0.1:1\"]\n"
            "  reward:\n"
            "    weights: {}\n");
}

TEST_F(OptionBinderTest, HelpHasOneLinePerOptionAndMarkdownEscapesBars) {
  EXPECT_THAT(binder_.Help(), HasSubstr("correction.max_weight  number  = 2  >= 1  ceiling on"));
  EXPECT_THAT(binder_.Markdown(), HasSubstr("| `correction.kind` | choice | `token_tis` | "
                                            "off \\| token_tis |"));
  EXPECT_THAT(binder_.Markdown(), HasSubstr("how many \\| in all"));
}

TEST_F(OptionBinderTest, ReadsAFileAndNamesAMissingOne) {
  testing::TempDir dir;
  ASSERT_THAT(WriteFileAtomically(dir / "run.yaml", "out: here\n"), IsOk());
  EXPECT_THAT(binder_.LoadFile(dir / "run.yaml"), IsOk());
  EXPECT_EQ(settings_.out, "here");
  EXPECT_THAT(binder_.LoadFile(dir / "none.yaml"),
              FailsWith(absl::StatusCode::kNotFound, "none.yaml"));
}

TEST(OptionBinderDeathTest, ANameBoundTwiceEndsTheProcess) {
  OptionBinder binder;
  int64_t field = 0;
  binder.Integer("steps", &field, {}, "", "");
  EXPECT_DEATH(binder.Integer("steps", &field, {}, "", ""), "TANDEM_CHECK failed");
}

TEST_F(OptionBinderTest, NamesEveryOptionThatDiffersFromItsDefault) {
  Settings other;
  OptionBinder defaults;
  Bind(defaults, other);
  EXPECT_THAT(binder_.ChangesFrom(defaults), ::testing::IsEmpty());
  ASSERT_THAT(Load("out: \"a: b\"\n"
                   "trainer:\n"
                   "  steps: 3\n"
                   "  deterministic: false\n"
                   "  reward:\n"
                   "    weights: {exact: 1, length: -0.5}\n"),
              IsOk());
  EXPECT_THAT(binder_.ChangesFrom(defaults),
              ElementsAre("out: \"a: b\"  (default runs)", "trainer.steps: 3  (default 10)",
                          "trainer.reward.weights: {exact: 1, length: -0.5}  (default {})"));
}

}  // namespace
}  // namespace tandem
