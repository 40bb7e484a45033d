#include "trainer/data/data_options.h"

#include "common/base/status_macros.h"

namespace tandem::trainer {

void BindOptions(OptionBinder& binder, DataOptions& options) {
  binder.Text(
      "train", &options.train,
      "prompts to train on: a file (JSON lines, JSON, CSV, TSV, Parquet, Arrow), a pattern of "
      "files, or a directory of the Hugging Face Hub or of save_to_disk; PATH:SPLIT names a "
      "split");
  binder.NumberMap("mixture", &options.mixture,
                   "several of them with weights, in place of train; the share of each is exact at "
                   "every step");
  binder.Text("split", &options.split, "split of train; empty: the only one, or train");
  binder.Text("subset", &options.subset,
              "subset (configuration) of a directory of the Hub; empty: the only one, or default");
  binder.Text("eval", &options.eval, "held-out prompts, like train; empty: no evaluation");
  binder.Number(
      "eval_share", &options.eval_share, {.min = 0, .max = 1, .exclusive_max = true}, "",
      "share of the prompts to train on that is held out for evaluation, by a hash of the "
      "prompt, in place of eval");
  binder.Choice("format", &options.format, DataFormatChoices(),
                "layout of a row; auto: by its columns");
  binder.TextMap("columns", &options.columns,
                 "columns of other names: prompt, answer, system_prompt, tools; a dot goes into "
                 "nested ones; an empty answer: rows have none");
  binder.Text(
      "template", &options.text_template,
      "text of the prompt with {COLUMN} for values of the row; {{ and }} are braces; empty: "
      "the prompt's column");
  binder.Text("system_prompt", &options.system_prompt,
              "message of the system before messages that have none");
  binder.Text("tools_file", &options.tools_file,
              "JSON array of tools for the chat template, where the row has no tools of its own");
  binder.Flag("chat", &options.chat, "render prompts through the model's chat template");
  binder.Text("suffix", &options.suffix, "added to prompts that are texts");
  binder.Integer("max_prompt_tokens", &options.max_prompt_tokens, {.min = 1}, "tokens",
                 "longest prompt");
  binder.Choice("over_length", &options.over_length,
                {{"refuse", OverLength::kRefuse}, {"drop", OverLength::kDrop}},
                "a prompt over max_prompt_tokens ends the run, or is left out and counted");
  binder.Flag("shuffle", &options.shuffle, "a new order each epoch, from the run's seed");
}

absl::Status CheckOptions(const DataOptions& options) {
  if (options.train.empty() && options.mixture.empty()) {
    return InvalidArgument(
        "trainer.data.train is empty: name a file or directory with prompts, or several in "
        "trainer.data.mixture");
  }
  if (!options.train.empty() && !options.mixture.empty()) {
    return InvalidArgument("trainer.data.train and trainer.data.mixture are both set: set one");
  }
  if (!options.eval.empty() && options.eval_share > 0) {
    return InvalidArgument(
        "trainer.data.eval and trainer.data.eval_share are both set: held-out prompts come from a "
        "file or from a share of those to train on");
  }
  if (!options.mixture.empty() && !(options.split.empty() && options.subset.empty())) {
    return InvalidArgument(
        "trainer.data.split and trainer.data.subset are of trainer.data.train: in a mixture a "
        "split "
        "is named with its path (PATH:SPLIT)");
  }
  for (const auto& [path, weight] : options.mixture) {
    if (weight > 0 && weight < 1e9) continue;
    return InvalidArgument("trainer.data.mixture: the weight of ", path, " is ", weight,
                           ", want a number over 0");
  }
  return absl::OkStatus();
}

std::vector<std::string> TrainPaths(const DataOptions& options) {
  if (options.mixture.empty()) return {options.train};
  std::vector<std::string> paths;
  for (const auto& [path, weight] : options.mixture) paths.push_back(path);
  return paths;
}

}  // namespace tandem::trainer
