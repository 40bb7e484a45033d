// tandem sft: supervised warm start of a model on prompts and answers.
#include <CLI/CLI.hpp>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "cli/data/data_flags.h"
#include "cli/io/subcommand.h"
#include "cli/supervised/supervised_session.h"
#include "common/base/status_macros.h"
#include "common/options/command_line.h"
#include "common/tables/row_reader.h"
#include "trainer/data/row_parser.h"
#include "trainer/preferences/step_data.h"
#include "trainer/supervised/objectives/completion_objective.h"
#include "trainer/supervised/reference_logprobs.h"

namespace tandem::cli {
namespace {

absl::StatusOr<trainer::LabelledCompletion> EncodeExample(const trainer::PromptRow& row,
                                                          const SupervisedSession& session) {
  const Tokenizer& tokenizer = session.tokenizer();
  trainer::LabelledCompletion example;
  TANDEM_ASSIGN_OR_RETURN(example.prompt, trainer::EncodePrompt(row.text, row.messages_json,
                                                                tokenizer, row.tools_json));
  TANDEM_ASSIGN_OR_RETURN(example.completion, tokenizer.Encode(row.answer));
  example.completion.push_back(session.end_token());
  const int64_t max_tokens = session.config().max_position_embeddings;
  const auto num_tokens = static_cast<int64_t>(example.prompt.size() + example.completion.size());
  if (num_tokens > max_tokens) {
    return InvalidArgument(num_tokens, " tokens are over the model's context of ", max_tokens);
  }
  return example;
}

// Reads rows as the trainer does. Messages that end with the assistant's need no answer. The prompt
// goes through the chat template if the model has one, and a completion is the answer and the end
// token.
//   errors of RowReader and RowParser
//   INVALID_ARGUMENT  a row (its place) is longer than the context, or there is no row
absl::StatusOr<std::vector<trainer::LabelledCompletion>> ReadExamples(
    const std::string& path, const trainer::DataOptions& options,
    const SupervisedSession& session) {
  const DatasetPart part = {.split = options.split, .subset = options.subset};
  TANDEM_ASSIGN_OR_RETURN(const auto parser, trainer::RowParser::Create(options));
  TANDEM_ASSIGN_OR_RETURN(const auto rows, RowReader::Open(path, part));
  std::vector<trainer::LabelledCompletion> examples;
  while (true) {
    TANDEM_ASSIGN_OR_RETURN(const std::optional<TableRow> row, rows->Next());
    if (!row.has_value()) break;
    TANDEM_ASSIGN_OR_RETURN(const trainer::PromptRow parsed, parser.Parse(row->json, row->place));
    auto example = EncodeExample(parsed, session);
    if (!example.ok()) {
      return absl::Status(example.status().code(),
                          absl::StrCat(row->place, ": ", example.status().message()));
    }
    examples.push_back(*std::move(example));
  }
  if (examples.empty()) return InvalidArgument(path, ": no examples");
  return examples;
}

struct SftFlags : SupervisedFlags {
  trainer::DataOptions prompts;
};

absl::Status Sft(SftFlags& flags) {
  TANDEM_RETURN_IF_ERROR(CheckRowFlags(flags.prompts));
  TANDEM_ASSIGN_OR_RETURN(const auto session, SupervisedSession::Open(flags));
  trainer::PreferenceData data;
  TANDEM_ASSIGN_OR_RETURN(data.labelled, ReadExamples(flags.data, flags.prompts, *session));
  trainer::PreferenceData held_out;
  if (flags.held_out_data.empty()) {
    held_out = TakeHeldOut(data, flags.rows.held_out, static_cast<uint64_t>(flags.run.seed));
  } else {
    trainer::DataOptions unseen = flags.prompts;
    unseen.split.clear();
    unseen.subset.clear();
    TANDEM_ASSIGN_OR_RETURN(held_out.labelled, ReadExamples(flags.held_out_data, unseen, *session));
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
  auto flags = std::make_shared<SftFlags>();
  flags->command = "sft";
  CLI::App* sub = app.add_subcommand("sft", "Supervised warm start of a model on answers");
  AddSupervisedFlags(
      *sub, *flags,
      absl::StrCat(kDataHelp,
                   "; messages that end with the assistant's need no answer; only the "
                   "answer is learned"),
      {{"max_row_tokens", ""}, {"long_rows", ""}, {"unusable_rows", ""}});
  AddRowFlags(sub, flags->prompts);
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
