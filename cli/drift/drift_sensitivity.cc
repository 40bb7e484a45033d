// tandem drift sensitivity: what quantising each matrix of a model costs on a batch, and a plan for a
// budget.
#include <CLI/CLI.hpp>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "cli/drift/capture_flags.h"
#include "cli/drift/progress_lines.h"
#include "cli/io/json_lines.h"
#include "cli/io/shared_flags.h"
#include "cli/io/subcommand.h"
#include "cli/model/model_input.h"
#include "common/base/exit_codes.h"
#include "common/base/status_macros.h"
#include "common/capture/capture.h"
#include "common/options/command_line.h"
#include "drift_lab/pages/sensitivity_report.h"
#include "drift_lab/sensitivity/sensitivity.h"

namespace tandem::cli {
namespace {

using rollout::ScoreSequence;

struct SensitivityFlags {
  drift::SensitivityOptions options;
  std::string batch, dtype;
  double budget = 0;
  int64_t most_tokens = 4096;
  JsonFlags json;
};

struct Batch {
  std::string model;  // that the capture names; empty for lines
  std::vector<ScoreSequence> sequences;
};

absl::StatusOr<Batch> FromCapture(const std::string& path) {
  TANDEM_RETURN_IF_ERROR(CheckIsOneCapture(path));
  TANDEM_ASSIGN_OR_RETURN(const offpolicy::Capture capture, offpolicy::ReadCapture(path));
  Batch batch = {.model = capture.manifest.model_path, .sequences = {}};
  for (int64_t s = 0; s < capture.num_completions(); ++s) {
    const auto prompt = capture.prompt_of(s), ids = capture.ids(s);
    ScoreSequence& one = batch.sequences.emplace_back();
    one.ids.assign(prompt.begin(), prompt.end());
    one.ids.insert(one.ids.end(), ids.begin(), ids.end());
    one.num_prompt_tokens = std::ssize(prompt);
  }
  return batch;
}

absl::StatusOr<Batch> FromLines(const std::string& path) {
  Batch batch;
  TANDEM_ASSIGN_OR_RETURN(const auto reader, JsonLineReader::Open(path));
  TANDEM_RETURN_IF_ERROR(reader->ForEach([&](const nlohmann::json& line) -> absl::Status {
    static constexpr const char* kKeys[] = {"ids", "num_prompt_tokens"};
    TANDEM_RETURN_IF_ERROR(CheckKeys(line, kKeys));
    ScoreSequence& one = batch.sequences.emplace_back();
    TANDEM_ASSIGN_OR_RETURN(one.ids, IdsField(line, "ids"));
    const auto prompt = line.find("num_prompt_tokens");
    if (prompt == line.end()) return absl::OkStatus();
    if (!prompt->is_number_integer() || prompt->get<int64_t>() < 0 ||
        prompt->get<int64_t>() >= std::ssize(one.ids)) {
      return InvalidArgument("\"num_prompt_tokens\": want an integer from 0 to ",
                             std::ssize(one.ids) - 1);
    }
    one.num_prompt_tokens = prompt->get<int64_t>();
    return absl::OkStatus();
  }));
  return batch;
}

// Keeps whole sequences, from the first on, up to this many ids in all; at least one.
void Shorten(int64_t most_tokens, std::vector<ScoreSequence>& sequences) {
  int64_t tokens = 0;
  size_t kept = 0;
  while (kept < sequences.size() &&
         (kept == 0 || tokens + std::ssize(sequences[kept].ids) <= most_tokens)) {
    tokens += std::ssize(sequences[kept++].ids);
  }
  sequences.resize(kept);
}

absl::Status Run(SensitivityFlags& flags) {
  std::error_code ignored;
  const bool is_capture = std::filesystem::is_directory(flags.batch, ignored);
  TANDEM_ASSIGN_OR_RETURN(Batch batch,
                          is_capture ? FromCapture(flags.batch) : FromLines(flags.batch));
  std::string& model = flags.options.model;
  if (model.empty()) model = batch.model;
  if (model.empty()) {
    return AsUsageError(absl::InvalidArgumentError("--model is needed with lines of ids"));
  }
  TANDEM_RETURN_IF_ERROR(FindModel(&model));
  TANDEM_ASSIGN_OR_RETURN(flags.dtype, ChooseDType(model, flags.dtype));
  flags.options.dtype = flags.dtype == "bf16" ? ComputeDType::kBf16 : ComputeDType::kFp32;
  if (flags.budget > 0) flags.options.budget = flags.budget;
  Shorten(flags.most_tokens, batch.sequences);
  StudyLine line;
  TANDEM_ASSIGN_OR_RETURN(
      const drift::Sensitivity result,
      drift::MeasureSensitivity(flags.options, batch.sequences,
                                [&](int64_t done, int64_t total, const std::string& next) {
                                  line.Show(done, total, next);
                                }));
  return PrintResult(flags.json, drift::SensitivityTable(result, flags.options.quantised),
                     drift::SensitivityJson(result, flags.options.quantised));
}

}  // namespace

void AddDriftSensitivityCommand(CLI::App& drift, Action& chosen) {
  auto flags = std::make_shared<SensitivityFlags>();
  flags->options.quantised.weights = WeightScheme::kInt8;
  CLI::App* sub = drift.add_subcommand(
      "sensitivity",
      "What quantising each matrix of a model costs on your own batch, and a plan for a budget");
  sub->add_option("batch", flags->batch,
                  "capture, or JSON lines {\"ids\", \"num_prompt_tokens\"}; - is standard input")
      ->required();
  sub->add_option("--model", flags->options.model,
                  "Hugging Face directory or name; default: that of the capture");
  AddWeightsDTypeFlag(sub, flags->dtype);
  AddWeightFlags(sub, flags->options.quantised);
  AddPositive(sub, "--temperature", flags->options.temperature, "logits are divided by it");
  AddNonNegative(sub, "--budget", flags->budget,
                 "most k3 of a mixed plan, nats: quantises what saves most memory for its cost; 0: "
                 "no plan");
  AddPositive(sub, "--batch-tokens", flags->most_tokens,
              "most ids of the batch that are used, in whole sequences");
  AddThreadsFlag(sub, flags->options.num_threads);
  AddJsonFlags(sub, &flags->json);
  EndHelp(*sub, "docs/quantised_rollouts.md",
          "tandem drift sensitivity runs/NAME/captures/step_1 --weight-format int4_group --budget "
          "1e-3");
  SetAction(*sub, chosen, [flags] { return Finish(Run(*flags)); });
}

}  // namespace tandem::cli
