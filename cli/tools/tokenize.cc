// tandem tokenize: converts the text, messages or ids of each line to ids or text.
#include <CLI/CLI.hpp>
#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "cli/io/json_lines.h"
#include "cli/io/subcommand.h"
#include "cli/model/model_input.h"
#include "common/base/status_macros.h"
#include "common/options/command_line.h"
#include "common/tokenizer/tokenizer.h"

namespace tandem::cli {
namespace {

struct TokenizeFlags {
  std::string model;
  std::string input = "-";
  bool chat = false;
};

std::string TextAndIds(const PromptInput& input) {
  return absl::StrCat("{\"text\":", TextToJson(input.text), ",\"ids\":", IdsToJson(input.ids), "}");
}

absl::StatusOr<std::string> Answer(const nlohmann::json& line, const TokenizeFlags& flags,
                                   const Tokenizer& tokenizer) {
  static constexpr const char* kKeys[] = {"text", "ids", "messages", "add_generation_prompt"};
  TANDEM_RETURN_IF_ERROR(CheckKeys(line, kKeys));
  if (line.contains("messages")) {
    TANDEM_ASSIGN_OR_RETURN(const bool generation, FlagField(line, "add_generation_prompt", false));
    TANDEM_ASSIGN_OR_RETURN(const PromptInput input,
                            EncodeChat(line["messages"], generation, tokenizer));
    return TextAndIds(input);
  }
  if (line.contains("ids")) {
    TANDEM_ASSIGN_OR_RETURN(const auto ids, IdsField(line, "ids"));
    TANDEM_ASSIGN_OR_RETURN(const std::string text, tokenizer.Decode(ids, false));
    return absl::StrCat("{\"text\":", TextToJson(text), "}");
  }
  TANDEM_ASSIGN_OR_RETURN(const std::string text, TextField(line, "text"));
  if (flags.chat) {
    const nlohmann::json messages = {{{"role", "user"}, {"content", text}}};
    TANDEM_ASSIGN_OR_RETURN(const PromptInput input, EncodeChat(messages, true, tokenizer));
    return TextAndIds(input);
  }
  TANDEM_ASSIGN_OR_RETURN(const auto ids, tokenizer.Encode(text));
  return absl::StrCat("{\"ids\":", IdsToJson(ids), "}");
}

absl::Status Tokenize(TokenizeFlags& flags) {
  TANDEM_RETURN_IF_ERROR(FindTokenizer(&flags.model));
  TANDEM_ASSIGN_OR_RETURN(const auto tokenizer, Tokenizer::Load(flags.model));
  TANDEM_ASSIGN_OR_RETURN(const auto reader, JsonLineReader::Open(flags.input));
  return reader->ForEach([&](const nlohmann::json& line) -> absl::Status {
    TANDEM_ASSIGN_OR_RETURN(const std::string answer, Answer(line, flags, *tokenizer));
    PrintLine(answer);
    return absl::OkStatus();
  });
}

}  // namespace

void AddTokenizeCommand(CLI::App& app, Action& chosen) {
  auto flags = std::make_shared<TokenizeFlags>();
  CLI::App* sub =
      app.add_subcommand("tokenize", "Text, messages or ids of each line to ids or text");
  sub->add_option("--model", flags->model,
                  "model directory, or a name on the Hub; only its tokenizer is read")
      ->required();
  sub->add_option("--input", flags->input, "JSON lines; - is standard input")
      ->capture_default_str();
  sub->add_flag("--chat", flags->chat,
                "a line's text is one user message, put through the chat template");
  EndHelp(
      *sub,
      "Lines:\n"
      "  {\"text\": ..}                                    -> {\"ids\": [..]} (no special tokens "
      "added)\n"
      "  {\"messages\": [..], \"add_generation_prompt\": b}  -> {\"text\": .., \"ids\": [..]}\n"
      "  {\"ids\": [..]}                                   -> {\"text\": ..}",
      "echo '{\"text\":\"One and one\"}' | tandem tokenize --model MODEL");
  SetAction(*sub, chosen, [flags] { return Finish(Tokenize(*flags)); });
}

}  // namespace tandem::cli
