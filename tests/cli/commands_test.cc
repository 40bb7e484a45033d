// Checks the help and the flags of every subcommand of `tandem`.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <CLI/CLI.hpp>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_split.h"
#include "cli/io/subcommand.h"
#include "common/options/command_line.h"

namespace tandem::cli {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

// The app of the program, and the words of every command that has an action.
struct Tandem {
  Tandem() : app("test") {
    AddCommands(app, chosen);
    Collect(app);
  }

  void Collect(CLI::App& command) {
    commands.push_back(&command);
    for (CLI::App* child : command.get_subcommands([](const CLI::App*) { return true; })) {
      Collect(*child);
    }
  }

  bool IsLeaf(const CLI::App& command) const {
    return command.get_subcommands([](const CLI::App*) { return true; }).empty();
  }

  CLI::App app;
  Action chosen;
  std::vector<CLI::App*> commands;  // command groups too
};

// The last line of a help text is an example.
std::string ExampleOf(const CLI::App& command) {
  const std::vector<std::string> lines = absl::StrSplit(command.get_footer(), '\n');
  return lines.back();
}

// Splits a command line as a shell does into words and text in single quotes.
std::vector<std::string> WordsOf(const std::string& line) {
  std::vector<std::string> words(1);
  bool quoted = false;
  for (const char c : line) {
    if (c == '\'') {
      quoted = !quoted;
    } else if (c == ' ' && !quoted) {
      words.emplace_back();
    } else {
      words.back() += c;
    }
  }
  return words;
}

TEST(CommandsTest, EveryHelpEndsWithOneExampleThatItsCommandParses) {
  const Tandem all;
  ASSERT_GT(all.commands.size(), 30U);
  for (const CLI::App* command : all.commands) {
    const std::string name = FullName(*command);
    SCOPED_TRACE(name);
    EXPECT_THAT(command->get_footer(), HasSubstr("Example:\n  "));
    std::string example = ExampleOf(*command);
    const size_t pipe = example.find(" | ");  // the program whose output is piped into the command
    example = pipe == std::string::npos ? example.substr(2) : example.substr(pipe + 3);
    EXPECT_THAT(example, StartsWith(name));
    std::vector<std::string> words = WordsOf(example);
    words.erase(words.begin());
    // The files of an example do not exist, and the parser does not check them.
    Tandem parsed;
    ::testing::internal::CaptureStderr();
    const std::optional<int> code = ParseCommandLine(parsed.app, words);
    EXPECT_EQ(::testing::internal::GetCapturedStderr(), "");
    EXPECT_EQ(code, std::nullopt);
    EXPECT_TRUE(parsed.chosen);
  }
}

TEST(CommandsTest, AWrongFlagOfEveryCommandIsAUsageErrorThatNamesIt) {
  const Tandem all;
  for (const CLI::App* command : all.commands) {
    const std::string name = FullName(*command);
    if (name == "tandem serve" || name == "tandem train") continue;  // separate programs
    SCOPED_TRACE(name);
    std::vector<std::string> words = WordsOf(name);
    words.erase(words.begin());
    words.push_back("--no-such-flag=1");
    Tandem parsed;
    ::testing::internal::CaptureStderr();
    const std::optional<int> code = ParseCommandLine(parsed.app, words);
    const std::string said = ::testing::internal::GetCapturedStderr();
    EXPECT_EQ(code, 2);
    EXPECT_THAT(said, HasSubstr(name + ": "));
    EXPECT_THAT(said, HasSubstr(name + " --help lists what there is"));
  }
}

TEST(CommandsTest, OneThingHasOneNameInAllSubcommands) {
  const Tandem all;
  const std::vector<std::string> former = {"--max-tokens", "--min-tokens",  "--new-tokens",
                                           "--group",      "--completions", "--num-completions",
                                           "--cast",       "--output"};
  for (const CLI::App* command : all.commands) {
    SCOPED_TRACE(FullName(*command));
    bool json = false, json_out = false;
    for (const CLI::Option* option : command->get_options()) {
      for (const std::string& name : option->get_lnames()) {
        EXPECT_THAT(former, ::testing::Not(::testing::Contains("--" + name)));
        json |= name == "json";
        json_out |= name == "json-out";
        if (name == "json") {
          EXPECT_EQ(option->get_items_expected_max(), 0) << "a switch";
        }
        if (name == "dtype") {
          EXPECT_THAT(option->get_type_name(), AllOf(HasSubstr("fp32"), HasSubstr("bf16")));
        }
      }
    }
    EXPECT_EQ(json, json_out);
  }
}

}  // namespace
}  // namespace tandem::cli
