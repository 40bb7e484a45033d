#include "cli/pipeline/stage_command.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "cli/io/subcommand.h"
#include "cli/run_file/run_file.h"
#include "common/base/status_macros.h"
#include "common/hub/resolve.h"
#include "common/options/nearest_name.h"

namespace tandem::cli {
namespace {

// Flags that the pipeline itself sets, or that would end the command without its work.
bool IsReserved(const std::string& flag) {
  return flag == "out" || flag == "resume" || flag == "help";
}

// The words of one option on the command line. A switch has no value, so that `false` is no word.
absl::StatusOr<std::vector<std::string>> WordsOf(const StageOption& option,
                                                 const CLI::App& command) {
  const std::string flag = "--" + option.name;
  const CLI::Option* const known = command.get_option_no_throw(flag);
  if (known == nullptr || IsReserved(option.name)) {
    std::vector<std::string> names;
    for (const CLI::Option* each : command.get_options()) {
      for (const std::string& name : each->get_lnames()) {
        if (!IsReserved(name)) names.push_back(name);
      }
    }
    if (known != nullptr) return InvalidArgument("'", option.name, "' is set by the pipeline");
    const std::string nearest = NearestIfClose(option.name, names);
    return InvalidArgument(
        "`tandem ", command.get_name(), "` has no option '", option.name, "'",
        nearest.empty() ? absl::StrCat(": tandem help ", command.get_name(), " lists what there is")
                        : absl::StrCat("; did you mean ", nearest, "?"));
  }
  std::vector<std::string> words;
  if (known->get_expected_max() > 0) {
    for (const std::string& value : option.values) words.push_back(flag + "=" + value);
    return words;
  }
  const std::string value = absl::StrJoin(option.values, ",");
  if (value == "true") return std::vector<std::string>{flag};
  if (value == "false") return words;
  return InvalidArgument(option.name, ": '", value, "' is not true or false");
}

// Parses without running anything.
absl::Status CheckWords(const Stage& stage, std::vector<std::string> words) {
  CLI::App app;
  Action unused;
  AddCommands(app, unused);
  std::ranges::reverse(words);  // CLI11 takes arguments in reverse order
  try {
    app.parse(std::move(words));
  } catch (const CLI::ParseError& error) {
    const std::string message = error.what();
    const auto option = std::ranges::find_if(stage.options, [&](const StageOption& each) {
      return message.find("--" + each.name) != std::string::npos;
    });
    return InvalidArgument(option == stage.options.end() ? stage.place : option->place, ": stage ",
                           stage.name, ": ", message);
  }
  return absl::OkStatus();
}

absl::StatusOr<StageCommand> ResolveFlags(const PipelineFile& pipeline, size_t index) {
  const Stage& stage = pipeline.stages[index];
  const StageKindInfo& info = InfoOf(stage.kind);
  CLI::App app;
  Action unused;
  AddCommands(app, unused);
  const CLI::App& command = *app.get_subcommand(info.command);
  StageCommand resolved = {.arguments = {info.command}};
  std::vector<StageOption> options = stage.options;
  if (std::ranges::count(options, "seed", &StageOption::name) == 0) {
    options.push_back({.name = "seed", .values = {absl::StrCat(pipeline.seed)}});
  }
  for (const StageOption& option : options) {
    auto words = WordsOf(option, command);
    if (!words.ok()) {
      return InvalidArgument(option.place, ": stage ", stage.name, ": ", words.status().message());
    }
    resolved.arguments.insert(resolved.arguments.end(), words->begin(), words->end());
    resolved.options[option.name] = absl::StrJoin(option.values, ", ");
    if (std::ranges::count(info.inputs, option.name) > 0) {
      resolved.inputs.insert(resolved.inputs.end(), option.values.begin(), option.values.end());
    }
  }
  resolved.arguments.push_back("--out=" + pipeline.OutputPath(index, info.outputs.front()));
  TANDEM_RETURN_IF_ERROR(CheckWords(stage, resolved.arguments));
  return resolved;
}

// The run keeps its directory in that of the stage, whatever `trainer.run` of the file says.
absl::StatusOr<StageCommand> ResolveRunFile(const PipelineFile& pipeline, size_t index) {
  const Stage& stage = pipeline.stages[index];
  const std::string directory = pipeline.StageDirectory(index);
  std::vector<RunFile::Text> texts = {
      {absl::StrCat("trainer: {seed: ", pipeline.seed, "}"), "pipeline.seed"}};
  for (const StageText& text : stage.texts) texts.push_back({text.yaml, text.origin});
  std::vector<std::string> sets = stage.sets;
  sets.push_back("trainer.run.out=" + directory);
  sets.push_back("trainer.run.name=run");
  auto file = RunFile::LoadTexts(texts, sets);
  if (!file.ok()) {
    return absl::Status(file.status().code(), absl::StrCat(stage.place, ": stage ", stage.name,
                                                           ": ", file.status().message()));
  }
  StageCommand resolved = {.arguments = {"run", directory + "/run.yaml"},
                           .inputs = (*file)->input_paths(),
                           .run_file = (*file)->ToYaml()};
  for (const RunFile::FoundModel& model : (*file)->FindModels()) {
    if (hub::IsNameOnHub(model.value)) resolved.inputs.push_back(model.value);
  }
  for (const std::string& change : (*file)->Changes()) {  // "NAME: VALUE  (default ..)"
    const size_t colon = change.find(": ");
    resolved.options[change.substr(0, colon)] =
        change.substr(colon + 2, change.rfind("  (default") - colon - 2);
  }
  return resolved;
}

}  // namespace

absl::StatusOr<StageCommand> ResolveStage(const PipelineFile& pipeline, size_t index) {
  const Stage& stage = pipeline.stages[index];
  TANDEM_ASSIGN_OR_RETURN(StageCommand resolved, stage.kind == StageKind::kRl
                                                     ? ResolveRunFile(pipeline, index)
                                                     : ResolveFlags(pipeline, index));
  for (const std::string& path : stage.reads) resolved.inputs.push_back(path);
  // A model's name stands for a commit, by whose files a stage is known. One that is not there stays,
  // and is reported with the other inputs.
  for (std::string& path : resolved.inputs) {
    if (!hub::IsNameOnHub(path)) continue;
    const auto model = hub::ResolveModel(path);
    if (model.ok()) path = model->path;
  }
  std::ranges::sort(resolved.inputs);
  const auto same = std::ranges::unique(resolved.inputs);
  resolved.inputs.erase(same.begin(), same.end());
  return resolved;
}

}  // namespace tandem::cli
