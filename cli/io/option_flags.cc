#include "cli/io/option_flags.h"

#include <CLI/CLI.hpp>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"

namespace tandem::cli {
namespace {

std::string FlagName(const std::string& option, const std::map<std::string, std::string>& renamed) {
  const auto found = renamed.find(option);
  if (found != renamed.end() && found->second.empty()) return "";
  const std::string name = found == renamed.end() ? option : found->second;
  return absl::StrCat("--", absl::StrReplaceAll(name, {{"_", "-"}, {".", "-"}}));
}

std::string HelpOf(const OptionBinder::OptionText& text) {
  std::string help = text.help;
  if (!text.unit.empty()) absl::StrAppend(&help, ", in ", text.unit);
  if (!text.range.empty() && text.type != "choice") absl::StrAppend(&help, " (", text.range, ")");
  return help;
}

}  // namespace

void AddOptionFlags(CLI::App& command, OptionBinder& binder,
                    const std::map<std::string, std::string>& renamed) {
  for (const OptionBinder::OptionText& text : binder.Texts()) {
    const std::string flag = FlagName(text.name, renamed);
    if (flag.empty()) continue;
    const bool is_switch = text.type == "flag" && text.value == "false";
    const auto set = [&binder, name = text.name, flag](const std::string& value) {
      const absl::Status status = binder.Set(absl::StrCat(name, "=", value));
      if (!status.ok()) throw CLI::ValidationError(flag, std::string(status.message()));
    };
    if (is_switch) {
      command.add_flag_callback(
          flag, [set] { set("true"); }, HelpOf(text));
    } else {
      CLI::Option* const option = command.add_option_function<std::string>(flag, set, HelpOf(text))
                                      ->default_str(text.value);
      if (text.type == "choice") option->type_name(text.range);
    }
  }
}

}  // namespace tandem::cli
