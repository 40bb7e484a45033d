// PipelineFile: a run file of stages, such as SFT, a reward model and PPO, in the order in which
// they run. Its top level is `pipeline:` (name, out, seed) and `stages:`. pipeline_run.h carries it
// out. Pure but for reading files; free of LibTorch.
//
//   pipeline: {name: ppo, out: runs, seed: 1}
//   stages:
//     - name: warm
//       kind: sft
//       options: {model: models/base, data: answers.jsonl, lr: 1e-5}
//     - name: ppo
//       kind: rl
//       file: run.yaml                # and what goes over it:
//       options:
//         trainer:
//           model: ${stages.warm.model}
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace tandem::cli {

enum class StageKind { kSft, kRewardModel, kPreferences, kSamples, kRl };

// What a stage of a kind runs and leaves. Its options are the flags of `command`, without dashes;
// those of rl are a run file.
struct StageKindInfo {
  StageKind kind = StageKind::kSft;
  const char* name = "";                // in the file
  const char* command = "";             // of `tandem`
  std::span<const char* const> inputs;  // options that name files or directories to read
  std::span<const char* const> outputs;
};
const StageKindInfo& InfoOf(StageKind kind);

struct StageOption {
  std::string name;  // with dashes: "max-new-tokens"
  std::vector<std::string> values;
  std::string place;  // FILE:LINE
};

// YAML whose lines are those of `origin`, so that messages about it name the right ones.
struct StageText {
  std::string yaml, origin;
};

struct Stage {
  std::string name;
  StageKind kind = StageKind::kSft;
  std::string place;                 // FILE:LINE
  std::vector<StageOption> options;  // of every kind but rl
  std::vector<StageText> texts;      // of rl, a later one over an earlier one
  std::vector<std::string> sets;     // of rl: KEY=VALUE over the texts
  // Directories and files of earlier stages that the options name, after ResolveReferences.
  std::vector<std::string> reads;
};

struct PipelineFile {
  std::string path;
  std::string name, out = "runs";
  int64_t seed = 1;
  std::vector<Stage> stages;

  std::string directory() const { return out + "/" + name; }
  std::string StageDirectory(size_t stage) const;                         // .../stages/N_name
  std::string OutputPath(size_t stage, const std::string& output) const;  // of one of its outputs
};

// Whether the top level of the file has `pipeline` or `stages`. False if it cannot be read.
bool IsPipelineFile(const std::string& path);

// Reads `path`, applies overrides STAGE.KEY=VALUE in order, and resolves references.
//   NOT_FOUND         there is no such file, or no file that a stage names
//   INVALID_ARGUMENT  FILE:LINE and what was expected: syntax, an unknown key or kind, a name that
//                     is missing, taken or no plain word, no stage, a stage of an override that is
//                     not there; those of ResolveReferences
absl::StatusOr<PipelineFile> ReadPipelineFile(const std::string& path,
                                              const std::vector<std::string>& sets);

// Replaces ${stages.NAME.OUTPUT} in the options of every stage by the path of that output, and
// fills Stage::reads.
//   INVALID_ARGUMENT  FILE:LINE: NAME is no stage, or this one or a later one; its kind has no such
//                     output; another form
absl::Status ResolveReferences(PipelineFile& pipeline);

}  // namespace tandem::cli
