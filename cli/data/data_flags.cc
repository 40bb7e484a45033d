#include "cli/data/data_flags.h"

#include <CLI/CLI.hpp>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "cli/io/subcommand.h"
#include "trainer/data/row_parser.h"

namespace tandem::cli {
namespace {

void AddColumnsFlag(CLI::App* sub, trainer::DataOptions& options) {
  const auto add = [&options](const std::string& text) {
    const size_t equals = text.find('=');
    if (equals == std::string::npos || equals == 0) {
      throw CLI::ValidationError(
          "--columns",
          absl::StrCat("is ", text, ", want ROLE=COLUMN, for instance prompt=problem"));
    }
    options.columns.emplace_back(text.substr(0, equals), text.substr(equals + 1));
  };
  sub->add_option_function<std::vector<std::string>>(
         "--columns",
         [add](const std::vector<std::string>& texts) {
           for (const std::string& text : texts) add(text);
         },
         "ROLE=COLUMN: the column of prompt, answer, system_prompt or tools; a dot goes into "
         "nested "
         "ones; answer= : rows have none (several times, or with commas)")
      ->delimiter(',')
      ->type_name("ROLE=COLUMN")
      ->take_all();
}

}  // namespace

void AddRowFlags(CLI::App* sub, trainer::DataOptions& options) {
  sub->add_option("--split", options.split,
                  "split of a directory; default: the only one, or train");
  sub->add_option(
      "--subset", options.subset,
      "subset (configuration) of a directory of the Hub; default: the only one, or default");
  std::map<std::string, trainer::DataFormat> formats;
  std::string names;
  for (const auto& [name, format] : trainer::DataFormatChoices()) {
    formats[name] = format;
    absl::StrAppend(&names, names.empty() ? "{" : ",", name);
  }
  sub->add_option("--format", options.format, "layout of a row; auto: by its columns")
      ->transform(CLI::CheckedTransformer(formats).description(names + "}"))
      ->default_str("auto");
  AddColumnsFlag(sub, options);
  sub->add_option("--template", options.text_template,
                  "text of the prompt, with {COLUMN} for values of the row");
  sub->add_option("--system-prompt", options.system_prompt,
                  "message of the system before messages that have none");
  sub->add_option("--tools-file", options.tools_file,
                  "JSON array of tools for the chat template, where a row has none of its own");
}

absl::Status CheckRowFlags(const trainer::DataOptions& options) {
  return AsUsageError(trainer::RowParser::Create(options).status());
}

void AddPromptFlags(CLI::App* sub, trainer::DataOptions& options) {
  AddRowFlags(sub, options);
  sub->add_option("--suffix", options.suffix, "text added to prompts that are texts");
  sub->add_flag_callback(
      "--no-chat", [&options] { options.chat = false; },
      "prompts as they are, not through the model's chat template (trainer.data.chat: false)");
}

}  // namespace tandem::cli
