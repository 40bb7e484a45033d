#include <CLI/CLI.hpp>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "cli/io/shared_flags.h"
#include "cli/io/subcommand.h"
#include "cli/model/model_directory.h"
#include "cli/model/model_input.h"
#include "common/base/status_macros.h"
#include "common/files/file_system.h"
#include "common/hub/resolve.h"
#include "common/lora/adapted_model.h"
#include "common/lora/peft_files.h"
#include "common/model/model_config.h"
#include "common/model/safetensors.h"
#include "common/options/command_line.h"
#include "common/tensor/nearest_cast.h"
#include "nlohmann/json.hpp"

namespace tandem::cli {
namespace {

namespace fs = std::filesystem;

bool Exists(const fs::path& path) {
  std::error_code ignored;
  return fs::exists(path, ignored);
}

bool HasWeights(const fs::path& directory) {
  return IsPeftDirectory(directory.string()) || Exists(directory / "model.safetensors") ||
         Exists(directory / "model.safetensors.index.json");
}

// The model that the run started from, according to the nearest run.json above the checkpoint.
// Empty if there is none.
std::string ModelOfRun(const fs::path& checkpoint) {
  for (fs::path at = fs::absolute(checkpoint); at.has_relative_path(); at = at.parent_path()) {
    if (!Exists(at / "run.json")) continue;
    const auto text = ReadFile((at / "run.json").string());
    if (!text.ok()) return "";
    const nlohmann::json run = nlohmann::json::parse(*text, nullptr, /*allow_exceptions=*/false);
    if (run.is_object() && run.contains("model") && run["model"].is_object()) {
      return run["model"].value("path", "");
    }
  }
  return "";
}

absl::StatusOr<fs::path> WeightsDirectory(const fs::path& from) {
  if (HasWeights(from)) return from;
  const fs::path checkpoints = from / "checkpoints";
  if (Exists(checkpoints / "LATEST")) {
    TANDEM_ASSIGN_OR_RETURN(const std::string latest, ReadFile((checkpoints / "LATEST").string()));
    const fs::path step = checkpoints / std::string(absl::StripAsciiWhitespace(latest));
    if (HasWeights(step)) return step;
    return NotFound(step.string(), ", which ", checkpoints.string(),
                    "/LATEST names, has no model.safetensors");
  }
  return NotFound(from.string(),
                  " is neither a run with checkpoints/LATEST nor a directory with "
                  "model.safetensors; runs save when trainer checkpoints are on");
}

struct ExportFlags {
  std::string from;
  std::string out;
  std::string dtype = "fp32";
  std::string base_model;
  bool adapter = false;
};

struct ExportSource {
  std::string weights;  // the directory with model.safetensors, or a PEFT directory
  std::string model;    // the directory with config.json and the tokenizer files
};

// `from` is a run directory (its last checkpoint, which checkpoints/LATEST names), a checkpoint
// directory, or a Hugging Face directory. The config.json of a checkpoint is that of `base_model`,
// or of the model that run.json names if `base_model` is empty.
absl::StatusOr<ExportSource> FindExportSource(const std::string& from,
                                              const std::string& base_model) {
  if (!Exists(from)) return NotFound(from, ": no such directory");
  TANDEM_ASSIGN_OR_RETURN(const fs::path weights, WeightsDirectory(from));
  ExportSource source{.weights = weights.string()};
  if (IsPeftDirectory(source.weights) && base_model.empty() && !Exists(weights / "config.json")) {
    TANDEM_ASSIGN_OR_RETURN(source.model, BaseDirectory(source.weights));
    return source;
  }
  if (!base_model.empty()) {
    source.model = base_model;
    if (hub::IsNameOnHub(base_model)) TANDEM_RETURN_IF_ERROR(FindTokenizer(&source.model));
  } else if (Exists(weights / "config.json")) {
    source.model = weights.string();
  } else {
    source.model = ModelOfRun(weights);
  }
  if (source.model.empty() || !Exists(fs::path(source.model) / "config.json")) {
    return NotFound("the model this checkpoint started from (config.json, tokenizer) is not at \"",
                    source.model, "\"; name it with --base-model");
  }
  return source;
}

// The merged weights, F32. For bf16 the base is rounded before, as a server holds it, and the sum is
// rounded when it is written, so that the files have what a push of the adapter gives that server.
absl::StatusOr<std::vector<HostTensor>> ReadMerged(const ExportSource& source,
                                                   const ExportFlags& flags) {
  std::string base = flags.base_model.empty() ? "" : source.model;
  if (base.empty()) {
    TANDEM_ASSIGN_OR_RETURN(base, BaseDirectory(source.weights));
  }
  TANDEM_ASSIGN_OR_RETURN(const ModelConfig config, ReadModelConfig(base));
  TANDEM_ASSIGN_OR_RETURN(const LoraAdapter adapter, ReadPeftDirectory(source.weights, config));
  TANDEM_ASSIGN_OR_RETURN(std::vector<HostTensor> tensors, ReadModelTensors(base));
  if (flags.dtype == "bf16") {
    for (HostTensor& tensor : tensors) {
      TANDEM_ASSIGN_OR_RETURN(tensor, CastNearest(tensor, DType::kBF16));
    }
  }
  return MergeAdapter(adapter, std::move(tensors));
}

// The adapters by themselves, as PEFT writes them.
absl::Status ExportAdapter(const ExportSource& source, const ExportFlags& flags) {
  if (!IsPeftDirectory(source.weights)) {
    return InvalidArgument(source.weights,
                           " has no adapter (adapter_config.json): only runs with trainer.lora "
                           "save one. Leave --adapter out");
  }
  TANDEM_ASSIGN_OR_RETURN(const ModelConfig config, ReadModelConfig(source.model));
  TANDEM_ASSIGN_OR_RETURN(const LoraAdapter adapter, ReadPeftDirectory(source.weights, config));
  std::string base = flags.base_model;
  if (base.empty()) {
    TANDEM_ASSIGN_OR_RETURN(base, BaseOfPeftDirectory(source.weights));
  }
  std::vector<TensorSource> tensors;
  for (const HostTensor& tensor : adapter.tensors) {
    TANDEM_ASSIGN_OR_RETURN(
        HostTensor cast, CastNearest(tensor, flags.dtype == "bf16" ? DType::kBF16 : DType::kF32));
    tensors.push_back(Present(std::move(cast)));
  }
  std::error_code failed;
  fs::create_directories(flags.out, failed);
  if (failed) return NotFound(flags.out, ": ", failed.message());
  TANDEM_RETURN_IF_ERROR(WritePeftDirectory(
      flags.out, PeftConfigText(base, adapter.options, adapter.modules), tensors));
  std::printf("%s: adapter of %s in %s, for the base %s\n", flags.out.c_str(),
              source.weights.c_str(), flags.dtype.c_str(), base.c_str());
  return absl::OkStatus();
}

absl::Status Export(const ExportFlags& flags) {
  TANDEM_ASSIGN_OR_RETURN(const ExportSource source,
                          FindExportSource(flags.from, flags.base_model));
  TANDEM_RETURN_IF_ERROR(CheckNoModelAt(flags.out));
  if (IsPeftDirectory(flags.out)) {
    return absl::AlreadyExistsError(absl::StrCat(flags.out, " holds an adapter"));
  }
  if (flags.adapter) return ExportAdapter(source, flags);
  TANDEM_ASSIGN_OR_RETURN(const ModelConfig config, ReadModelConfig(source.model));
  TANDEM_ASSIGN_OR_RETURN(auto tensors, IsPeftDirectory(source.weights)
                                            ? ReadMerged(source, flags)
                                            : ReadModelTensors(source.weights));
  TANDEM_ASSIGN_OR_RETURN(tensors, MatchModelTensors(config, std::move(tensors)));
  TANDEM_RETURN_IF_ERROR(WriteModelDirectory(config, std::move(tensors), source.model, flags.out,
                                             flags.dtype == "bf16" ? DType::kBF16 : DType::kF32));
  std::printf("%s: weights of %s in %s\n", flags.out.c_str(), source.weights.c_str(),
              flags.dtype.c_str());
  return absl::OkStatus();
}

}  // namespace

void AddExportCommand(CLI::App& app, Action& chosen) {
  auto flags = std::make_shared<ExportFlags>();
  CLI::App* sub = app.add_subcommand("export", "A run's weights as a Hugging Face directory");
  sub->add_option("from", flags->from,
                  "run directory (its last checkpoint), checkpoint directory, or model directory")
      ->required();
  sub->add_option("--out", flags->out, "directory to make")->required();
  AddChoice(sub, "--dtype", flags->dtype, {"fp32", "bf16"},
            "dtype of the weights written; bf16 is rounded as in a weight push (dither)");
  sub->add_option("--base-model", flags->base_model,
                  "where config and tokenizer are, if not where the run says; of an adapter, where "
                  "its base is");
  sub->add_flag("--adapter", flags->adapter,
                "write the adapter of a run with trainer.lora as a PEFT directory, in place of the "
                "model with it merged in");
  EndHelp(*sub, "", "tandem export runs/NAME --out exported --dtype bf16");
  SetAction(*sub, chosen, [flags] { return Finish(Export(*flags)); });
}

}  // namespace tandem::cli
