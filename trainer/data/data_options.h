// DataOptions: section trainer.data of a run file, and the flags of the tools that read prompts.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "common/options/options.h"
#include "trainer/data/row_layout.h"

namespace tandem::trainer {

enum class OverLength { kRefuse, kDrop };

struct DataOptions {
  std::string train;                                    // FindDatasetFiles reads it
  std::vector<std::pair<std::string, double>> mixture;  // in place of `train`: path and weight
  std::string split, subset;                            // of `train`; empty: the usual one
  std::string eval;                                     // empty: no evaluation
  double eval_share = 0;                                // in place of `eval`: of the prompts
  DataFormat format = DataFormat::kAuto;
  std::vector<std::pair<std::string, std::string>> columns;  // role and column
  std::string text_template;  // empty: the text of the prompt's column
  std::string system_prompt;
  std::string tools_file;
  std::string tools_json;  // in place of the file: those of an environment; no option
  bool chat = true;
  std::string suffix;  // added to prompts that are texts
  int64_t max_prompt_tokens = 1024;
  OverLength over_length = OverLength::kRefuse;
  bool shuffle = true;
};
void BindOptions(OptionBinder& binder, DataOptions& options);

// Checks what options say together. RowParser::Create checks those of a row.
//   INVALID_ARGUMENT  neither `train` nor `mixture`, or both; `eval` beside `eval_share`; a weight
//                     that is not over 0; a split or subset beside a mixture
absl::Status CheckOptions(const DataOptions& options);

// Whether there are held-out prompts.
inline bool HasEvaluation(const DataOptions& options) {
  return !options.eval.empty() || options.eval_share > 0;
}

// The paths to train on: `train`, or those of the mixture. A path may end with ":SPLIT".
std::vector<std::string> TrainPaths(const DataOptions& options);

}  // namespace tandem::trainer
