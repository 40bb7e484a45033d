// Reads the rows of one data set as prompts, tokenised (start of stage 1). PromptSource makes the
// order of a run of them, and `tandem data` shows them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/tables/dataset_files.h"
#include "common/tokenizer/tokenizer.h"
#include "proto/experience.pb.h"
#include "trainer/data/data_options.h"
#include "trainer/data/row_parser.h"

namespace tandem::trainer {

// The prompt of a row: its text as the model is given it, through the chat template if options.chat,
// and its ids. The answer is set, and neither index nor source.
//   INVALID_ARGUMENT  messages without the chat template, text that is not UTF-8, a prompt without
//                     tokens, or an error of the template; `place` opens the message
//   UNIMPLEMENTED     the model has no chat template
absl::StatusOr<experience::v1::Prompt> TokenisePrompt(const PromptRow& row,
                                                      const std::string& place, bool chat,
                                                      const Tokenizer& tokenizer);

// The prompts of a data set, in its order.
struct ReadPrompts {
  std::vector<experience::v1::Prompt> kept;
  std::vector<experience::v1::Prompt> held_out;  // by eval_share
  int64_t num_dropped = 0;                       // over length
  int64_t num_rows = 0;                          // lines of JSON lines, blank ones included
  std::string longest_place;                     // of the longest prompt of `kept`
  int64_t longest_tokens = 0;
};

// Reads the rows of `path`. Indices begin at `first_index`.
//   errors of RowReader and RowParser
//   INVALID_ARGUMENT  a prompt over max_prompt_tokens with over_length refuse; no prompt at all
//   UNIMPLEMENTED     as TokenisePrompt
absl::StatusOr<ReadPrompts> ReadPromptsOf(const std::string& path, const DatasetPart& part,
                                          const DataOptions& options, int64_t first_index,
                                          const Tokenizer& tokenizer);

}  // namespace tandem::trainer
