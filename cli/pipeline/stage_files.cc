#include "cli/pipeline/stage_files.h"

#include <algorithm>
#include <filesystem>
#include <span>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/files/file_system.h"
#include "common/weights/digest.h"

namespace tandem::cli {
namespace {

namespace fs = std::filesystem;

constexpr double kPatienceSeconds = 60;

bool Exists(const std::string& path) {
  std::error_code ignored;
  return fs::exists(path, ignored);
}

// Where the command of a stage keeps its checkpoints: in the output directory of a supervised
// command, in the run directory of rl. Empty: it keeps none.
std::string CheckpointDirectory(const PipelineFile& pipeline, size_t index) {
  switch (pipeline.stages[index].kind) {
    case StageKind::kSamples:
      return "";
    case StageKind::kRl:
      return pipeline.OutputPath(index, "run");
    default:
      return pipeline.OutputPath(index, "model");
  }
}

}  // namespace

absl::StatusOr<std::string> DigestOfPath(const std::string& path) {
  std::error_code ignored;
  if (!fs::is_directory(path, ignored)) return DigestFile(path);
  if (!Exists(path + "/config.json")) return std::string();
  std::vector<std::string> names;
  for (const fs::directory_entry& entry : fs::directory_iterator(path, ignored)) {
    const std::string name = entry.path().filename().string();
    const bool is_weights = name.ends_with(".safetensors") && name.starts_with("model");
    if (is_weights || name == "config.json" || name == "tokenizer.json" ||
        name == "tokenizer_config.json" || name == "chat_template.jinja") {
      names.push_back(name);
    }
  }
  std::ranges::sort(names);
  std::string lines;
  for (const std::string& name : names) {
    TANDEM_ASSIGN_OR_RETURN(const std::string digest, DigestFile(path + "/" + name));
    absl::StrAppend(&lines, name, ":", digest, "\n");
  }
  return Digest128(std::as_bytes(std::span(lines.data(), lines.size())));
}

StageEvidence FindEvidence(const PipelineFile& pipeline, size_t index) {
  const StageKind kind = pipeline.stages[index].kind;
  StageEvidence evidence;
  if (kind == StageKind::kSamples) {
    evidence.outputs_are_whole = Exists(pipeline.OutputPath(index, "data"));
    return evidence;
  }
  // config.json is the last file of a model directory; a reward model's report comes after it.
  const std::string model = pipeline.OutputPath(index, "model");
  evidence.outputs_are_whole =
      Exists(model + "/config.json") &&
      (kind != StageKind::kRewardModel || Exists(model + "/reward_model.html"));
  // A run without a checkpoint is resumed too: it begins at step 0 again.
  const std::string directory = CheckpointDirectory(pipeline, index);
  evidence.can_resume = Exists(directory + "/checkpoints/LATEST");
  return evidence;
}

absl::Status WaitUntilFree(const PipelineFile& pipeline, size_t index) {
  const std::string directory = CheckpointDirectory(pipeline, index);
  if (directory.empty() || !Exists(directory)) return absl::OkStatus();
  return DirectoryLock::Take(directory, kPatienceSeconds).status();
}

}  // namespace tandem::cli
