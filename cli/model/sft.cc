// tandem sft: supervised warm start of a model on prompts and answers.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "cli/io/json_lines.h"
#include "cli/io/live_line.h"
#include "cli/io/shared_flags.h"
#include "cli/io/subcommand.h"
#include "cli/model/local_policy.h"
#include "cli/model/model_directory.h"
#include "cli/model/model_input.h"
#include "common/base/clock.h"
#include "common/base/status_macros.h"
#include "common/options/command_line.h"
#include "common/process/memory.h"
#include "trainer/prompts/prompt_source.h"

namespace tandem::cli {
namespace {

// Moves the text of a last message from the assistant to "answer".
void MoveLastReplyToAnswer(nlohmann::json& line) {
  if (line.contains("answer") || !line.contains("messages")) return;
  nlohmann::json& messages = line["messages"];
  if (!messages.is_array() || messages.size() < 2 || !messages.back().is_object()) return;
  if (messages.back().value("role", "") != "assistant") return;
  line["answer"] = messages.back().value("content", "");
  messages.erase(messages.size() - 1);
}

absl::StatusOr<SupervisedExample> ParseExample(nlohmann::json line, const Tokenizer& tokenizer,
                                               int32_t end_token, int64_t max_tokens) {
  MoveLastReplyToAnswer(line);
  TANDEM_ASSIGN_OR_RETURN(const trainer::PromptRow row,
                          trainer::ParsePromptRow(line.dump(), "the row", ""));
  std::string prompt = row.text;
  if (!row.messages_json.empty()) {
    TANDEM_ASSIGN_OR_RETURN(prompt, tokenizer.RenderChat(row.messages_json, true));
  } else if (tokenizer.has_chat_template()) {
    const nlohmann::json messages = {{{"role", "user"}, {"content", row.text}}};
    TANDEM_ASSIGN_OR_RETURN(prompt, tokenizer.RenderChat(messages.dump(), true));
  }
  SupervisedExample example;
  TANDEM_ASSIGN_OR_RETURN(example.prompt, tokenizer.Encode(prompt));
  TANDEM_ASSIGN_OR_RETURN(example.completion, tokenizer.Encode(row.answer));
  example.completion.push_back(end_token);
  const int64_t num_tokens =
      static_cast<int64_t>(example.prompt.size() + example.completion.size());
  if (example.prompt.empty()) return absl::InvalidArgumentError("the prompt has no tokens");
  if (num_tokens > max_tokens) {
    return InvalidArgument(num_tokens, " tokens are over the model's context of ", max_tokens);
  }
  return example;
}

// Reads rows as the trainer does (prompt, messages or question, with an answer). Messages that end
// with the assistant's need no answer. The prompt goes through the chat template if the model has
// one, and a completion is the answer and `end_token`.
//   NOT_FOUND         there is no such file
//   INVALID_ARGUMENT  a line (FILE:LINE) has another form or is longer than `max_tokens`, or there
//                     is no line
absl::StatusOr<std::vector<SupervisedExample>> ReadSupervisedExamples(const std::string& path,
                                                                      const Tokenizer& tokenizer,
                                                                      int32_t end_token,
                                                                      int64_t max_tokens) {
  TANDEM_ASSIGN_OR_RETURN(const auto reader, JsonLineReader::Open(path));
  std::vector<SupervisedExample> examples;
  TANDEM_RETURN_IF_ERROR(reader->ForEach([&](nlohmann::json line) -> absl::Status {
    TANDEM_ASSIGN_OR_RETURN(examples.emplace_back(),
                            ParseExample(std::move(line), tokenizer, end_token, max_tokens));
    return absl::OkStatus();
  }));
  if (examples.empty()) return InvalidArgument(path, ": no examples");
  return examples;
}

struct SftFlags {
  std::string model;
  std::string data;
  std::string out;
  std::string dtype = "fp32";
  std::string save_dtype = "fp32";
  int64_t epochs = 1;
  int64_t batch = 32;
  uint64_t seed = 0;
  trainer::OptimizerOptions optimizer{
      .learning_rate = 2e-5, .warmup_updates = 10, .decay = trainer::LearningRateDecay::kCosine};
};

std::string Describe(const SupervisedStep& step, int64_t done, int64_t total, double seconds) {
  return absl::StrFormat(
      "sft %s  loss %.4f  lr %.1e  %.0f tok/s  ETA %s", ProgressBar(done, total, 20), step.loss,
      step.learning_rate, static_cast<double>(step.num_tokens * done) / std::max(seconds, 1e-9),
      ShortDuration(seconds / static_cast<double>(done) * static_cast<double>(total - done)));
}

absl::Status TrainEpochs(const SftFlags& flags, const std::vector<SupervisedExample>& examples,
                         int64_t total, SupervisedTraining& training) {
  const int64_t count = static_cast<int64_t>(examples.size());
  const int64_t plain_every = std::max<int64_t>(1, total / 20);
  const double start = MonotonicSeconds();
  LiveLine live;
  int64_t done = 0;
  for (int64_t epoch = 0; epoch < flags.epochs; ++epoch) {
    const std::vector<int64_t> order = trainer::EpochOrder(count, flags.seed, epoch);
    for (int64_t begin = 0; begin < count; begin += flags.batch) {
      std::vector<const SupervisedExample*> batch;
      for (int64_t i = begin; i < std::min(count, begin + flags.batch); ++i) {
        batch.push_back(&examples[static_cast<size_t>(order[static_cast<size_t>(i)])]);
      }
      TANDEM_ASSIGN_OR_RETURN(const SupervisedStep step, training.Step(batch));
      const std::string text = Describe(step, ++done, total, MonotonicSeconds() - start);
      if (done == total || (!live.is_terminal() && done % plain_every == 0)) {
        live.Print(text);
      } else {
        live.Update(text);
      }
    }
  }
  return absl::OkStatus();
}

absl::Status Sft(SftFlags& flags) {
  TANDEM_RETURN_IF_ERROR(CheckModelDirectory(flags.model));
  TANDEM_RETURN_IF_ERROR(CheckNoModelAt(flags.out));
  TANDEM_ASSIGN_OR_RETURN(const auto tokenizer, Tokenizer::Load(flags.model));
  TANDEM_ASSIGN_OR_RETURN(const ModelConfig config, ReadModelConfig(flags.model));
  const int32_t end_token =
      !config.eos_token_ids.empty() ? config.eos_token_ids[0] : tokenizer->eos_token_id();
  if (end_token < 0) {
    return InvalidArgument(flags.model, ": names no end token");
  }
  TANDEM_ASSIGN_OR_RETURN(
      const auto examples,
      ReadSupervisedExamples(flags.data, *tokenizer, end_token, config.max_position_embeddings));
  const int64_t count = static_cast<int64_t>(examples.size());
  const int64_t total = (count + flags.batch - 1) / flags.batch * flags.epochs;
  flags.optimizer.decay_updates = std::max<int64_t>(1, total - flags.optimizer.warmup_updates);
  KeepFreedMemory();
  TANDEM_ASSIGN_OR_RETURN(
      const auto training,
      SupervisedTraining::Create(flags.model, flags.dtype == "bf16", flags.optimizer));
  TANDEM_RETURN_IF_ERROR(TrainEpochs(flags, examples, total, *training));
  TANDEM_ASSIGN_OR_RETURN(auto weights, training->Weights());
  TANDEM_RETURN_IF_ERROR(
      WriteModelDirectory(config, std::move(weights), flags.model, flags.out,
                          flags.save_dtype == "bf16" ? DType::kBF16 : DType::kF32));
  absl::PrintF("%s: %d updates on %d examples\n", flags.out, total, count);
  return absl::OkStatus();
}

}  // namespace

void AddSftCommand(CLI::App& app, Action& chosen) {
  auto flags = std::make_shared<SftFlags>();
  CLI::App* sub = app.add_subcommand("sft", "Supervised warm start of a model from JSON lines");
  sub->add_option("--model", flags->model, "Hugging Face directory to start from")->required();
  sub->add_option("--data", flags->data,
                  "JSON lines: prompt, messages or question with an answer, or messages that end "
                  "with the assistant's; only the answer is learned")
      ->required();
  sub->add_option("--out", flags->out, "directory to make")->required();
  AddPositive(sub, "--epochs", flags->epochs, "passes over the file");
  AddPositive(sub, "--batch", flags->batch, "examples of one update");
  AddPositive(
      sub, "--lr", flags->optimizer.learning_rate,
      "peak learning rate: warm-up, then cosine to 0. The default suits a pretrained model; one of "
      "`tandem init`\n"
      "takes more, about 1e-3");
  AddNonNegative(sub, "--warmup", flags->optimizer.warmup_updates, "updates of the warm-up");
  AddNonNegative(sub, "--weight-decay", flags->optimizer.weight_decay,
                 "weight decay of the matrices");
  sub->add_option("--seed", flags->seed, "seed of the order of the examples")
      ->capture_default_str();
  AddChoice(sub, "--dtype", flags->dtype, {"fp32", "bf16"}, "compute dtype; masters are fp32");
  AddChoice(sub, "--save-dtype", flags->save_dtype, {"fp32", "bf16"},
            "dtype of the weights written; bf16 is rounded as in a weight push (dither)");
  EndHelp(*sub, "", "tandem sft --model MODEL --data train.jsonl --out warm --epochs 2");
  SetAction(*sub, chosen, [flags] { return Finish(Sft(*flags)); });
}

}  // namespace tandem::cli
