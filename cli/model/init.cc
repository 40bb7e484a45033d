// tandem init: a fresh model of a given shape with a tokenizer trained on a text file.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <memory>
#include <string>

#include "cli/io/json_lines.h"
#include "cli/io/subcommand.h"
#include "cli/model/fresh_model.h"
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

void AddSize(CLI::App* sub, const char* name, int64_t* field, const char* help) {
  sub->add_option(name, *field, help)->check(CLI::PositiveNumber)->capture_default_str();
}

}  // namespace

void AddInitCommand(CLI::App& app, Action& chosen) {
  auto flags = std::make_shared<InitFlags>();
  FreshModelShape& shape = flags->shape;
  CLI::App* sub = app.add_subcommand(
      "init", "A fresh model of a given shape, with a tokenizer trained on a text file");
  sub->add_option("--out", flags->out, "Hugging Face directory to make")->required();
  sub->add_option("--text", flags->text, "text the tokenizer is trained on (UTF-8)")->required();
  sub->add_option("--model-type", shape.model_type, "architecture")
      ->check(CLI::IsMember({"llama", "qwen2", "qwen3"}))
      ->capture_default_str();
  AddSize(sub, "--hidden", &shape.hidden, "width of the residual stream");
  AddSize(sub, "--layers", &shape.layers, "decoder layers");
  AddSize(sub, "--heads", &shape.heads, "attention heads");
  AddSize(sub, "--kv-heads", &shape.kv_heads, "key and value heads; divides --heads");
  sub->add_option("--head-dim", shape.head_dim, "size of a head; 0: hidden / heads")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  AddSize(sub, "--intermediate", &shape.intermediate, "width of the feed-forward layer");
  AddSize(sub, "--vocab", &shape.vocab, "tokens of the tokenizer, at most");
  AddSize(sub, "--context", &shape.context, "longest sequence, in tokens");
  sub->add_flag(
      "--untied,!--tied", [flags](int64_t count) { flags->shape.tie_word_embeddings = count <= 0; },
      "an output head of its own (default: the embedding is the head)");
  sub->add_option("--seed", flags->seed, "of the weights")->capture_default_str();
  EndHelp(*sub, "",
          "tandem init --out fresh --text corpus.txt --hidden 128 --layers 4 --vocab 300");
  sub->callback([flags, &chosen] {
    chosen = [flags] {
      const absl::Status status = Init(*flags);
      return status.ok() ? 0 : Fail(status);
    };
  });
}

}  // namespace tandem::cli
