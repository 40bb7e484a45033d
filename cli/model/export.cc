#include "cli/model/export.h"

#include <cstring>
#include <filesystem>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/files/file_system.h"
#include "common/model/model_config.h"
#include "common/model/safetensors.h"
#include "common/tensor/bf16_rounding.h"
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
  return Exists(directory / "model.safetensors") ||
         Exists(directory / "model.safetensors.index.json");
}

// The model a run started from, as the nearest run.json above the checkpoint names it.
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
    return absl::NotFoundError(absl::StrCat(step.string(), ", which ", checkpoints.string(),
                                            "/LATEST names, has no model.safetensors"));
  }
  return absl::NotFoundError(
      absl::StrCat(from.string(),
                   " is neither a run with checkpoints/LATEST nor a directory with "
                   "model.safetensors; runs save when trainer checkpoints are on"));
}

HostTensor Cast(const HostTensor& tensor, DType dtype) {
  if (tensor.spec.dtype == dtype) return tensor;
  const int64_t count = tensor.spec.num_elements();
  const uint64_t name_hash = DitherNameHash(tensor.spec.name);
  auto buffer =
      std::make_shared<std::vector<std::byte>>(static_cast<size_t>(count * DTypeBytes(dtype)));
  for (int64_t i = 0; i < count; ++i) {
    const float value = ElementAsFloat(tensor.spec.dtype, tensor.bytes.data(), i);
    if (dtype == DType::kBF16) {
      const uint16_t half = DitherBf16(value, name_hash, static_cast<uint64_t>(i));
      std::memcpy(buffer->data() + i * 2, &half, 2);
    } else {
      std::memcpy(buffer->data() + i * 4, &value, 4);
    }
  }
  HostTensor cast;
  cast.spec = tensor.spec;
  cast.spec.dtype = dtype;
  cast.bytes = *buffer;
  cast.owner = buffer;
  return cast;
}

absl::Status CopyTokenizerFiles(const fs::path& from, const fs::path& to) {
  for (const char* name :
       {"tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "chat_template.jinja",
        "generation_config.json", "vocab.json", "merges.txt", "added_tokens.json", "LICENSE"}) {
    if (!Exists(from / name)) continue;
    TANDEM_ASSIGN_OR_RETURN(const std::string contents, ReadFile((from / name).string()));
    TANDEM_RETURN_IF_ERROR(WriteFileAtomically((to / name).string(), contents));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<ExportSource> FindExportSource(const std::string& from,
                                              const std::string& base_model) {
  if (!Exists(from)) return absl::NotFoundError(absl::StrCat(from, ": no such directory"));
  TANDEM_ASSIGN_OR_RETURN(const fs::path weights, WeightsDirectory(from));
  ExportSource source{.weights = weights.string()};
  if (!base_model.empty()) {
    source.model = base_model;
  } else if (Exists(weights / "config.json")) {
    source.model = weights.string();
  } else {
    source.model = ModelOfRun(weights);
  }
  if (source.model.empty() || !Exists(fs::path(source.model) / "config.json")) {
    return absl::NotFoundError(
        absl::StrCat("the model this checkpoint started from (config.json, tokenizer) is not at \"",
                     source.model, "\"; name it with --base-model"));
  }
  return source;
}

absl::Status CheckNoModelAt(const std::string& directory) {
  if (!Exists(fs::path(directory) / "config.json")) return absl::OkStatus();
  return absl::AlreadyExistsError(
      absl::StrCat(directory, " holds a model already; choose another --out"));
}

absl::Status WriteModelDirectory(const ModelConfig& config, std::vector<HostTensor> tensors,
                                 const std::string& tokenizer_from, const std::string& out,
                                 DType dtype) {
  TANDEM_RETURN_IF_ERROR(CheckNoModelAt(out));
  for (HostTensor& tensor : tensors) tensor = Cast(tensor, dtype);
  const fs::path root(out);
  TANDEM_RETURN_IF_ERROR(MakeDirectories(out));
  TANDEM_RETURN_IF_ERROR(WriteSafetensors((root / "model.safetensors").string(), tensors));
  TANDEM_RETURN_IF_ERROR(CopyTokenizerFiles(tokenizer_from, root));
  return WriteFileAtomically((root / "config.json").string(), ModelConfigToJson(config, dtype));
}

absl::Status ExportModel(const ExportSource& source, const std::string& out, DType dtype) {
  TANDEM_RETURN_IF_ERROR(CheckNoModelAt(out));
  TANDEM_ASSIGN_OR_RETURN(const ModelConfig config, ReadModelConfig(source.model));
  TANDEM_ASSIGN_OR_RETURN(auto tensors, ReadModelTensors(source.weights));
  TANDEM_ASSIGN_OR_RETURN(tensors, MatchModelTensors(config, std::move(tensors)));
  return WriteModelDirectory(config, std::move(tensors), source.model, out, dtype);
}

}  // namespace tandem::cli
