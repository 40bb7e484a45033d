// What a data set holds, as the trainer would read it: its form, its columns, how long its prompts
// are, what is missing or there twice, and its first prompts as the model is given them. `tandem
// data` and `tandem run --dry-run` print it.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/tables/dataset_files.h"
#include "common/tokenizer/tokenizer.h"
#include "trainer/data/data_options.h"

namespace tandem::cli {

struct ShownPrompt {
  std::string place, text, answer;
  std::vector<int32_t> ids;  // empty without a tokenizer
};

struct DataPreview {
  std::string path, description;  // "Parquet, 2 files, split train"
  std::map<std::string, int64_t>
      layouts;  // rows of each: "verl: prompt / reward_model.ground_truth"
  std::vector<std::pair<std::string, int64_t>> columns;  // and rows with a value, in order
  int64_t num_rows = 0;
  int64_t num_wrong = 0;  // rows that the trainer would refuse; `first_error` is of the first
  std::string first_error;
  int64_t num_without_answer = 0;
  int64_t num_duplicates = 0;  // rows whose prompt was there before
  int64_t num_held_out = 0;    // by eval_share
  int64_t num_with_tools = 0;
  bool has_tokens = false;       // lengths are tokens; else characters
  std::vector<int64_t> lengths;  // of prompts, in order
  std::vector<ShownPrompt> first;
};

struct PreviewLimits {
  int64_t num_shown = 3;
  int64_t max_prompt_tokens = 0;  // 0: none
  int64_t context_tokens = 0;     // that a prompt may have; 0: not known
};

// Reads all rows. `tokenizer` may be null: then prompts are not rendered, and lengths are characters.
// `progress` is called with the number of rows so far, now and then.
//   errors of RowReader and RowParser::Create
//   errors of RowParser::Parse and TokenisePrompt count as wrong rows
absl::StatusOr<DataPreview> PreviewData(const std::string& path, const DatasetPart& part,
                                        const trainer::DataOptions& options,
                                        const Tokenizer* tokenizer, int64_t num_shown,
                                        absl::FunctionRef<void(int64_t)> progress);

// The value that a share `q` of the values is not over (nearest rank); 0 for none. Pure.
int64_t NearestRank(const std::vector<int64_t>& sorted, double q);

// A few lines of bars, from the least to the largest value. Pure.
std::vector<std::string> Histogram(const std::vector<int64_t>& sorted, int num_bins, int width);

// Lines for people, without prompts: form, columns, counts and lengths.
std::vector<std::string> SummaryLines(const DataPreview& preview, const PreviewLimits& limits);

// The first prompts, each under a line that names its place, in colour or plain.
//   errors of ShowTokens
absl::StatusOr<std::string> ShownPrompts(const DataPreview& preview, const Tokenizer* tokenizer,
                                         bool in_colour);

// All of it as one JSON object.
std::string PreviewJson(const DataPreview& preview, const PreviewLimits& limits);

}  // namespace tandem::cli
