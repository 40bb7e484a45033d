// tandem init: a fresh model of a given shape with a tokenizer trained on a text file.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <memory>
#include <string>

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
  FreshModelShape shape;
};

absl::Status Init(const InitFlags& flags) {
  TANDEM_ASSIGN_OR_RETURN(const std::string text, ReadFile(flags.text));
  TANDEM_ASSIGN_OR_RETURN(const ModelConfig config,
                          WriteFreshModel(flags.out, flags.shape, text, flags.seed));
  std::printf("%s: %s, %lld parameters, vocabulary %lld\n", flags.out.c_str(),
              config.model_type.c_str(), static_cast<long long>(NumParameters(config)),
              static_cast<long long>(config.vocab_size));
  return absl::OkStatus();
}

}  // namespace

void AddInitCommand(CLI::App& app, Action& chosen) {
  auto flags = std::make_shared<InitFlags>();
  FreshModelShape& shape = flags->shape;
  CLI::App* sub = app.add_subcommand(
      "init", "A fresh model of a given shape, with a tokenizer trained on a text file");
  sub->add_option("--out", flags->out, "Hugging Face directory to make")->required();
  sub->add_option("--text", flags->text, "text that the tokenizer is trained on (UTF-8)")
      ->required();
  AddChoice(sub, "--model-type", shape.model_type, {"llama", "qwen2", "qwen3"}, "architecture");
  AddPositive(sub, "--hidden", shape.hidden, "width of the residual stream");
  AddPositive(sub, "--layers", shape.layers, "decoder layers");
  AddPositive(sub, "--heads", shape.heads, "attention heads");
  AddPositive(sub, "--kv-heads", shape.kv_heads, "key and value heads; divides --heads");
  AddNonNegative(sub, "--head-dim", shape.head_dim, "size of a head; 0: hidden / heads");
  AddPositive(sub, "--intermediate", shape.intermediate, "width of the feed-forward layer");
  AddPositive(sub, "--vocab", shape.vocab, "tokens of the tokenizer, at most");
  AddPositive(sub, "--context", shape.context, "longest sequence, in tokens");
  sub->add_flag(
      "--untied,!--tied", [flags](int64_t count) { flags->shape.tie_word_embeddings = count <= 0; },
      "an output head of its own (default: the embedding is the head)");
  sub->add_option("--seed", flags->seed, "seed of the weights")->capture_default_str();
  EndHelp(*sub, "",
          "tandem init --out fresh --text corpus.txt --hidden 128 --layers 4 --vocab 300");
  SetAction(*sub, chosen, [flags] { return Finish(Init(*flags)); });
}

}  // namespace tandem::cli
