// tandem init: a fresh model of a given shape with a tokenizer trained on a text file.
#include <CLI/CLI.hpp>
#include <memory>
#include <string>

#include "absl/strings/str_format.h"
#include "cli/io/shared_flags.h"
#include "cli/io/subcommand.h"
#include "cli/model/model_directory.h"
#include "common/base/status_macros.h"
#include "common/files/file_system.h"
#include "common/options/command_line.h"

namespace tandem::cli {
namespace {

struct InitFlags {
  std::string out;
  std::string text;
  uint64_t seed = 0;
  ModelConfig shape = FreshModelShape();
};

absl::Status Init(const InitFlags& flags) {
  TANDEM_ASSIGN_OR_RETURN(const std::string text, ReadFile(flags.text));
  TANDEM_ASSIGN_OR_RETURN(const ModelConfig config,
                          WriteFreshModel(flags.out, flags.shape, text, flags.seed));
  absl::PrintF("%s: %s, %d parameters, vocabulary %d\n", flags.out, config.model_type,
               NumParameters(config), config.vocab_size);
  return absl::OkStatus();
}

}  // namespace

void AddInitCommand(CLI::App& app, Action& chosen) {
  auto flags = std::make_shared<InitFlags>();
  ModelConfig& shape = flags->shape;
  CLI::App* sub = app.add_subcommand(
      "init", "A fresh model of a given shape, with a tokenizer trained on a text file");
  sub->add_option("--out", flags->out, "Hugging Face directory to make")->required();
  sub->add_option("--text", flags->text, "text that the tokenizer is trained on (UTF-8)")
      ->required();
  AddChoice(sub, "--model-type", shape.model_type, {"llama", "qwen2", "qwen3"}, "architecture");
  AddPositive(sub, "--hidden", shape.hidden_size, "width of the residual stream");
  AddPositive(sub, "--layers", shape.num_layers, "decoder layers");
  AddPositive(sub, "--heads", shape.num_heads, "attention heads");
  AddPositive(sub, "--kv-heads", shape.num_kv_heads, "key and value heads; divides --heads");
  AddNonNegative(sub, "--head-dim", shape.head_dim, "size of a head; 0: hidden / heads");
  AddPositive(sub, "--intermediate", shape.intermediate_size, "width of the feed-forward layer");
  AddPositive(sub, "--vocab", shape.vocab_size, "tokens of the tokenizer, at most");
  AddPositive(sub, "--context", shape.max_position_embeddings, "longest sequence, in tokens");
  sub->add_flag(
      "--untied,!--tied", [flags](int64_t count) { flags->shape.tie_word_embeddings = count <= 0; },
      "an output head of its own (default: the embedding is the head)");
  sub->add_option("--seed", flags->seed, "seed of the weights")->capture_default_str();
  EndHelp(*sub, "",
          "tandem init --out fresh --text corpus.txt --hidden 128 --layers 4 --vocab 300");
  SetAction(*sub, chosen, [flags] { return Finish(Init(*flags)); });
}

}  // namespace tandem::cli
