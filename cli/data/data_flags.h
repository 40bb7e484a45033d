// The flags of commands that read prompts, named as the options of trainer.data in a run file, which
// they set: `tandem data`, `eval`, `sample`, `sft` and `drift capture`.
#pragma once

#include "absl/status/status.h"
#include "trainer/data/data_options.h"

namespace CLI {
class App;
}

namespace tandem::cli {

// --split, --subset, --format, --columns ROLE=COLUMN, --template, --system-prompt and --tools-file:
// which rows are read, and how. `options` must outlive parsing.
void AddRowFlags(CLI::App* sub, trainer::DataOptions& options);

// Those, --suffix and --no-chat: what the model is given of a row.
void AddPromptFlags(CLI::App* sub, trainer::DataOptions& options);

// Checks what the flags say together, and reads the file of tools.
//   errors of trainer::RowParser::Create, with exit code 2
absl::Status CheckRowFlags(const trainer::DataOptions& options);

// The help of a flag or an argument that names data.
inline constexpr char kDataHelp[] =
    "prompts and answers: JSON lines, JSON, CSV, TSV, Parquet, Arrow, a pattern of files, or a "
    "directory of the Hugging Face Hub or of save_to_disk; PATH:SPLIT names a split";

}  // namespace tandem::cli
