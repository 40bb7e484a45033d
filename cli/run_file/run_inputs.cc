#include "cli/run_file/run_inputs.h"

#include <cerrno>
#include <cstring>
#include <string>
#include <vector>

#include <unistd.h>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "cli/model/model_input.h"
#include "common/base/exit_codes.h"
#include "common/base/status_macros.h"
#include "common/model/model_config.h"
#include "common/tokenizer/tokenizer.h"
#include "trainer/prompts/prompt_source.h"

namespace tandem::cli {

absl::Status CheckInputs(const RunFile& file) {
  std::vector<std::string> missing;
  for (const std::string& path : file.input_paths()) {
    if (path == file.trainer_model() || path == file.server_model()) {
      const absl::Status model = CheckModelDirectory(path);
      if (!model.ok()) missing.emplace_back(model.message());
    } else if (::access(path.c_str(), R_OK) != 0) {
      missing.push_back(absl::StrCat(path, ": ", std::strerror(errno)));
    }
  }
  if (missing.empty()) return absl::OkStatus();
  return trainer::WithExitCode(absl::NotFoundError(absl::StrJoin(missing, "\n")),
                               ExitCode::kBadModelOrData);
}

namespace {

absl::StatusOr<PromptCounts> ReadCounts(const RunFile& file) {
  TANDEM_ASSIGN_OR_RETURN(const ModelConfig config, ReadModelConfig(file.trainer_model()));
  TANDEM_ASSIGN_OR_RETURN(const auto tokenizer, Tokenizer::Load(file.trainer_model()));
  TANDEM_ASSIGN_OR_RETURN(
      const trainer::RunPrompts prompts,
      trainer::OpenRunPrompts(file.trainer().data, file.trainer().seed,
                              file.trainer().sampling.max_new_tokens, config, *tokenizer));
  PromptCounts counts{.num_train = static_cast<int64_t>(prompts.train->prompts().size()),
                      .num_dropped = prompts.train->num_dropped()};
  if (prompts.eval == nullptr) return counts;
  counts.num_eval = static_cast<int64_t>(prompts.eval->prompts().size());
  counts.num_dropped += prompts.eval->num_dropped();
  return counts;
}

}  // namespace

absl::StatusOr<PromptCounts> CountPrompts(const RunFile& file) {
  absl::StatusOr<PromptCounts> counts = ReadCounts(file);
  if (counts.ok()) return counts;
  return trainer::WithExitCode(counts.status(), ExitCode::kBadModelOrData);
}

}  // namespace tandem::cli
