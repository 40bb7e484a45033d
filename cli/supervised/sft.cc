// tandem sft: supervised warm start of a model on prompts and answers.
#include <CLI/CLI.hpp>
#include <memory>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "cli/io/subcommand.h"
#include "cli/supervised/supervised_session.h"
#include "common/base/status_macros.h"
#include "common/files/file_system.h"
#include "common/options/command_line.h"
#include "common/parquet/parquet_rows.h"
#include "nlohmann/json.hpp"
#include "trainer/preferences/step_data.h"
#include "trainer/prompts/prompt_source.h"
#include "trainer/supervised/objectives/completion_objective.h"
#include "trainer/supervised/reference_logprobs.h"

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

absl::StatusOr<trainer::LabelledCompletion> ParseExample(const std::string& text,
                                                         const SupervisedSession& session,
                                                         int64_t max_tokens) {
  nlohmann::json line = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!line.is_object()) return absl::InvalidArgumentError("not a JSON object");
  MoveLastReplyToAnswer(line);
  TANDEM_ASSIGN_OR_RETURN(const trainer::PromptRow row,
                          trainer::ParsePromptRow(line.dump(), "the row", ""));
  const Tokenizer& tokenizer = session.tokenizer();
  trainer::LabelledCompletion example;
  TANDEM_ASSIGN_OR_RETURN(example.prompt,
                          trainer::EncodePrompt(row.text, row.messages_json, tokenizer));
  TANDEM_ASSIGN_OR_RETURN(example.completion, tokenizer.Encode(row.answer));
  example.completion.push_back(session.end_token());
  const auto num_tokens = static_cast<int64_t>(example.prompt.size() + example.completion.size());
  if (num_tokens > max_tokens) {
    return InvalidArgument(num_tokens, " tokens are over the model's context of ", max_tokens);
  }
  return example;
}

// Reads rows as the trainer does (prompt, messages or question, with an answer), from JSON lines or
// a Parquet file. Messages that end with the assistant's need no answer. The prompt goes through
// the chat template if the model has one, and a completion is the answer and the end token.
//   NOT_FOUND         there is no such file
//   INVALID_ARGUMENT  a row (FILE:LINE) has another form or is longer than the context, or there is
//                     no row
absl::StatusOr<std::vector<trainer::LabelledCompletion>> ReadExamples(
    const std::string& path, const SupervisedSession& session) {
  const bool is_parquet = path.ends_with(".parquet");
  TANDEM_ASSIGN_OR_RETURN(const std::string contents,
                          is_parquet ? ReadParquetAsJsonLines(path) : ReadFile(path));
  std::vector<trainer::LabelledCompletion> examples;
  std::istringstream lines(contents);
  int64_t number = 0;
  for (std::string line; std::getline(lines, line);) {
    ++number;
    if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
    auto example = ParseExample(line, session, session.config().max_position_embeddings);
    if (!example.ok()) {
      return absl::Status(example.status().code(),
                          absl::StrCat(path, is_parquet ? ": row " : ":", number, ": ",
                                       example.status().message()));
    }
    examples.push_back(*std::move(example));
  }
  if (examples.empty()) return InvalidArgument(path, ": no examples");
  return examples;
}

absl::Status Sft(SupervisedFlags& flags) {
  TANDEM_ASSIGN_OR_RETURN(const auto session, SupervisedSession::Open(flags));
  trainer::PreferenceData data;
  TANDEM_ASSIGN_OR_RETURN(data.labelled, ReadExamples(flags.data, *session));
  trainer::PreferenceData held_out;
  if (flags.held_out_data.empty()) {
    held_out = TakeHeldOut(data, flags.rows.held_out, static_cast<uint64_t>(flags.run.seed));
  } else {
    TANDEM_ASSIGN_OR_RETURN(held_out.labelled, ReadExamples(flags.held_out_data, *session));
  }
  const auto count = static_cast<int64_t>(data.labelled.size());
  trainer::CompletionObjective objective(std::move(data.labelled));
  trainer::CompletionObjective unseen(std::move(held_out.labelled));
  const std::string digest =
      trainer::SequencesDigest(count, [&](int64_t example) { return objective.Example(example); });
  TANDEM_RETURN_IF_ERROR(session->Join());
  TANDEM_ASSIGN_OR_RETURN(const auto model,
                          trainer::SupervisedModel::Create(session->ModelSetup(count)));
  TANDEM_ASSIGN_OR_RETURN(
      const trainer::SupervisedOutcome outcome,
      session->Train(*model, objective, unseen.num_examples() > 0 ? &unseen : nullptr, digest));
  TANDEM_ASSIGN_OR_RETURN(auto tensors, session->Gather(*model));
  TANDEM_RETURN_IF_ERROR(session->Write(std::move(tensors)));
  if (!session->leads()) return absl::OkStatus();
  absl::PrintF("%s: %d updates on %d examples\n", flags.out, outcome.num_updates, count);
  if (outcome.held_out.has_value()) {
    absl::PrintF("held out: loss %.4f on %d examples\n", outcome.held_out->loss,
                 unseen.num_examples());
  }
  return absl::OkStatus();
}

}  // namespace

void AddSftCommand(CLI::App& app, Action& chosen) {
  auto flags = std::make_shared<SupervisedFlags>();
  flags->command = "sft";
  CLI::App* sub = app.add_subcommand("sft", "Supervised warm start of a model on answers");
  AddSupervisedFlags(
      *sub, *flags,
      "JSON lines or .parquet: prompt, messages or question with an answer, or messages that end "
      "with the assistant's; only the answer is learned",
      {{"max_row_tokens", ""}, {"long_rows", ""}, {"unusable_rows", ""}});
  EndHelp(*sub,
          "The default of --lr suits a pretrained model; one of `tandem init` takes more, about "
          "1e-3.",
          "tandem sft --model MODEL --data train.jsonl --out warm --epochs 2");
  SetAction(*sub, chosen, [flags] {
    const std::optional<int> launched = StartRanks(*flags);
    return launched.has_value() ? *launched : Finish(Sft(*flags));
  });
}

}  // namespace tandem::cli
