// Labelled steps: a file of completions whose steps have labels, as token ids, for process reward
// models. Used by `tandem train-reward-model --process`.
//
//   {"prompt": P, "steps": ["text", ..], "labels": [1, 0, ..]}
//
// P is a text or messages, as in preference_rows.h; "completions" is read as "steps", and true and
// false as 1 and 0 (TRL's stepwise supervision). A label is 0, 1, or a number between: the share of
// continuations from the step that are right (Math-Shepherd, arXiv 2312.08935). The labels of
// PRM800K, which are -1, 0 and 1, are to be mapped first.
//
// A step that does not end with a line break gets one, unless it is the last: process_reward.h
// splits texts at line breaks by default. Steps are encoded apart, and the score of a step is read
// at its last token. There is no end token.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "common/tokenizer/tokenizer.h"
#include "trainer/preferences/preference_data.h"

namespace tandem::trainer {

struct LabelledSteps {
  std::vector<int32_t> prompt, completion;
  std::vector<int64_t> step_ends;  // tokens of the completion up to each step's end; rising
  std::vector<double> labels;      // parallel to step_ends; in [0, 1]
  int64_t row = 0;                 // line of the file, from 1
};

struct StepData {
  std::vector<LabelledSteps> rows;
  PreferenceRowCounts counts;  // a truncated row lost its last steps
};

// Reads the data set at `path` (RowReader). Of `options`, a row that is truncated keeps the steps that
// fit whole.
//   errors of RowReader
//   INVALID_ARGUMENT  the row's place and what was expected: a missing field,
//                     another number of labels than of steps, a label outside [0, 1], a blank step,
//                     a row that is too long where these are refused; no row that can be used
//   UNIMPLEMENTED     messages for a model without a chat template
absl::StatusOr<StepData> ReadStepData(const std::string& path, const PreferenceDataOptions& options,
                                      const Tokenizer& tokenizer, int64_t context_tokens);

// As TakeHeldOut of preference_data.h.
std::vector<LabelledSteps> TakeHeldOut(std::vector<LabelledSteps>& rows, double share,
                                       uint64_t seed);

// The prompt of a row as the model reads it: a text, or messages through the chat template. A text
// goes through it too, as one message of the user, if the model has one.
//   INVALID_ARGUMENT  the template refuses it
//   UNIMPLEMENTED     messages for a model without a chat template
absl::StatusOr<std::string> RenderPrompt(const std::string& text, const std::string& messages_json,
                                         const Tokenizer& tokenizer,
                                         const std::string& tools_json = "");

// The ids of that.
//   INVALID_ARGUMENT  it has no tokens, or the template refuses it
//   UNIMPLEMENTED     messages for a model without a chat template
absl::StatusOr<std::vector<int32_t>> EncodePrompt(const std::string& text,
                                                  const std::string& messages_json,
                                                  const Tokenizer& tokenizer,
                                                  const std::string& tools_json = "");

// The completion of steps, and where they end in it.
absl::StatusOr<LabelledSteps> EncodeSteps(const std::vector<std::string>& steps,
                                          const Tokenizer& tokenizer);

}  // namespace tandem::trainer
