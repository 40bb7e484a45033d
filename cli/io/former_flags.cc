#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "cli/io/subcommand.h"

namespace tandem::cli {
namespace {

struct FormerFlag {
  const char* command;
  const char* former;
  const char* current;
};

// A former name that means something else today (--json FILE, --servers 1,2) is not in the list; it
// is refused.
constexpr FormerFlag kFormerFlags[] = {
    {"generate", "--max-tokens", "--max-new-tokens"},
    {"generate", "--min-tokens", "--min-new-tokens"},
    {"generate", "--num-completions", "--group-size"},
    {"eval", "--max-tokens", "--max-new-tokens"},
    {"score", "--max-tokens", "--max-line-tokens"},
    {"bench rollout", "--new-tokens", "--max-new-tokens"},
    {"bench serve", "--new-tokens", "--max-new-tokens"},
    {"bench train", "--new-tokens", "--max-new-tokens"},
    {"bench train", "--group", "--group-size"},
    {"bench simulate", "--group", "--group-size"},
    {"bench push", "--servers", "--num-servers"},
    {"drift capture", "--completions", "--group-size"},
    {"drift capture", "--prompts", "--data"},
    {"serve-reward-model", "--split", "--boundary"},
    {"serve-reward-model", "--split-pattern", "--boundary-pattern"},
    {"label-steps", "--split", "--boundary"},
    {"label-steps", "--split-pattern", "--boundary-pattern"},
    {"train-reward-model", "--split", "--boundary"},
    {"train-reward-model", "--split-pattern", "--boundary-pattern"},
    {"demo", "--cast", "--rounding"},
    {"report", "--output", "--out"},
};

// The words before the first flag, at most two: "generate", "bench train".
std::string CommandOf(const std::vector<std::string>& arguments) {
  std::string command;
  for (size_t i = 0; i < std::min<size_t>(2, arguments.size()); ++i) {
    if (arguments[i].starts_with("-")) break;
    absl::StrAppend(&command, i > 0 ? " " : "", arguments[i]);
  }
  return command;
}

bool IsCommand(const std::string& written, const std::string& command) {
  return written == command || written.starts_with(command + " ");
}

}  // namespace

CurrentArguments WithCurrentFlags(std::vector<std::string> arguments) {
  CurrentArguments now;
  const std::string command = CommandOf(arguments);
  const auto end = std::ranges::find(arguments, "--");
  for (auto argument = arguments.begin(); argument != end; ++argument) {
    const size_t equals = std::min(argument->find('='), argument->size());
    const std::string name = argument->substr(0, equals);
    for (const FormerFlag& flag : kFormerFlags) {
      if (name != flag.former || !IsCommand(command, flag.command)) continue;
      *argument = absl::StrCat(flag.current, argument->substr(equals));
      now.warnings.push_back(absl::StrCat("tandem ", flag.command, ": ", flag.former, " is called ",
                                          flag.current, " now"));
    }
  }
  now.arguments = std::move(arguments);
  return now;
}

}  // namespace tandem::cli
