// tandem data: what a data set holds and what the model is given of it.
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "cli/data/data_flags.h"
#include "cli/data/data_preview.h"
#include "cli/io/live_line.h"
#include "cli/io/shared_flags.h"
#include "cli/io/subcommand.h"
#include "cli/model/model_input.h"
#include "cli/run_file/run_file.h"
#include "common/base/exit_codes.h"
#include "common/base/status_macros.h"
#include "common/model/model_config.h"
#include "common/options/command_line.h"

namespace tandem::cli {
namespace {

struct DataFlags {
  std::string data, model;
  std::vector<std::string> sets;
  int64_t rows = 3;
  trainer::DataOptions options;
  JsonFlags json;
};

// One data set that is looked at.
struct Looked {
  std::string path;
  DatasetPart part;
  trainer::DataOptions options;
};

struct Request {
  std::vector<Looked> sets;
  std::string model;
  PreviewLimits limits;
  int64_t max_new_tokens = 0;
};

bool IsRunFile(const std::string& path) {
  return path.ends_with(".yaml") || path.ends_with(".yml");
}

// What a run file trains on and evaluates with.
absl::StatusOr<Request> RequestOfRun(const DataFlags& flags) {
  TANDEM_ASSIGN_OR_RETURN(const auto file, RunFile::Load(flags.data, flags.sets));
  const trainer::DataOptions& data = file->trainer().data;
  TANDEM_RETURN_IF_ERROR(AsUsageError(trainer::CheckOptions(data)));
  Request request{.model = flags.model.empty() ? file->trainer().model : flags.model,
                  .limits = {.num_shown = flags.rows, .max_prompt_tokens = data.max_prompt_tokens},
                  .max_new_tokens = file->trainer().sampling.max_new_tokens};
  for (const std::string& path : trainer::TrainPaths(data)) {
    request.sets.push_back({path, {.split = data.split, .subset = data.subset}, data});
  }
  if (!data.eval.empty()) {
    request.sets.push_back({data.eval, {}, data});
    request.sets.back().options.eval_share = 0;
  }
  return request;
}

Request RequestOfFlags(const DataFlags& flags) {
  return {.sets = {{flags.data,
                    {.split = flags.options.split, .subset = flags.options.subset},
                    flags.options}},
          .model = flags.model,
          .limits = {.num_shown = flags.rows}};
}

absl::StatusOr<DataPreview> Look(const Looked& set, const Tokenizer* tokenizer, int64_t num_shown) {
  LiveLine live;
  auto preview =
      PreviewData(set.path, set.part, set.options, tokenizer, num_shown,
                  [&](int64_t rows) { live.Update(absl::StrCat(set.path, ": ", rows, " rows")); });
  live.Clear();
  return preview;
}

// Options of a run file are changed as everywhere, by --set.
absl::Status CheckNoRowFlags(const CLI::App& sub, const std::string& run_file) {
  for (const char* const flag : {"--split", "--subset", "--format", "--columns", "--template",
                                 "--system-prompt", "--tools-file", "--suffix", "--no-chat"}) {
    if (sub.count(flag) == 0) continue;
    return AsUsageError(InvalidArgument(flag, " is of data, and ", run_file,
                                        " is a run file: use --set trainer.data.OPTION=VALUE"));
  }
  return absl::OkStatus();
}

absl::Status Data(const DataFlags& flags, const CLI::App& sub) {
  Request request;
  if (IsRunFile(flags.data)) {
    TANDEM_RETURN_IF_ERROR(CheckNoRowFlags(sub, flags.data));
    TANDEM_ASSIGN_OR_RETURN(request, RequestOfRun(flags));
  } else if (!flags.sets.empty()) {
    return AsUsageError(
        InvalidArgument("--set changes a run file, and ", flags.data, " is data: use the flags"));
  } else {
    TANDEM_RETURN_IF_ERROR(CheckRowFlags(flags.options));
    request = RequestOfFlags(flags);
  }
  std::unique_ptr<Tokenizer> tokenizer;
  if (!request.model.empty()) {
    TANDEM_RETURN_IF_ERROR(FindModel(&request.model));
    TANDEM_ASSIGN_OR_RETURN(tokenizer, Tokenizer::Load(request.model));
    TANDEM_ASSIGN_OR_RETURN(const ModelConfig config, ReadModelConfig(request.model));
    request.limits.context_tokens = config.max_position_embeddings - request.max_new_tokens;
  }
  std::string text;
  std::vector<std::string> objects;
  int64_t num_wrong = 0;
  for (const Looked& set : request.sets) {
    TANDEM_ASSIGN_OR_RETURN(const DataPreview preview, Look(set, tokenizer.get(), flags.rows));
    if (preview.num_rows == 0) {
      return trainer::WithExitCode(
          InvalidArgument(set.path, ": no row of data (", preview.description, ")"),
          ExitCode::kBadModelOrData);
    }
    TANDEM_ASSIGN_OR_RETURN(const std::string shown,
                            ShownPrompts(preview, tokenizer.get(), ColourWantedOn(STDOUT_FILENO)));
    absl::StrAppend(&text, text.empty() ? "" : "\n",
                    absl::StrJoin(SummaryLines(preview, request.limits), "\n"), "\n", shown);
    objects.push_back(PreviewJson(preview, request.limits));
    num_wrong += preview.num_wrong;
  }
  TANDEM_RETURN_IF_ERROR(PrintResult(
      flags.json, text, absl::StrCat("{\"data\":[", absl::StrJoin(objects, ","), "]}")));
  if (num_wrong == 0) return absl::OkStatus();
  return trainer::WithExitCode(
      InvalidArgument(num_wrong, " rows cannot be used; the first is named above"),
      ExitCode::kBadModelOrData);
}

}  // namespace

void AddDataCommand(CLI::App& app, Action& chosen) {
  auto flags = std::make_shared<DataFlags>();
  CLI::App* sub = app.add_subcommand("data",
                                     "What a data set holds: its format, its columns, lengths, and "
                                     "prompts as the model sees them");
  sub->add_option("data", flags->data, absl::StrCat("a run file (.yaml), or ", kDataHelp))
      ->required();
  sub->add_option(
      "--model", flags->model,
      "Hugging Face directory whose chat template and tokenizer are used; default: that "
      "of the run file, or none");
  AddNonNegative(sub, "--rows", flags->rows, "prompts to show");
  AddPromptFlags(sub, flags->options);
  AddRunSetFlag(sub, flags->sets);
  AddJsonFlags(sub, &flags->json);
  EndHelp(*sub,
          "Tokens have two colours in turn on a terminal, special ones a third; NO_COLOR turns it "
          "off.\nExit code 3 if a row cannot be used.",
          "tandem data train.parquet --model MODEL --columns prompt=problem,answer=solution");
  SetAction(*sub, chosen, [flags, sub] { return Finish(Data(*flags, *sub)); });
}

}  // namespace tandem::cli
