// Layouts of rows of prompts: which columns the prompt and the answer are in, as the trainers that
// data sets are made for expect them. Used by row_parser.h. Pure.
//
//   plain      prompt / answer
//   messages   messages / answer, or without it the last message if it is the assistant's (AReaL)
//   gsm8k      question / answer (".. #### 7")
//   verl       prompt / reward_model.ground_truth    volcengine/verl, utils/dataset/rl_dataset.py
//   trl        prompt / solution, ground_truth or answer     huggingface/trl, rewards
//   prime_rl   prompt or question / answer    PrimeIntellect-ai/verifiers, envs/environment.py
//   openrlhf   input / label      OpenRLHF/OpenRLHF, datasets/prompts_dataset.py
//   nemo_rl    messages or input / output    NVIDIA-NeMo/RL, response_datasets/response_dataset.py
//   math       problem / answer, expected_answer or solution     MATH, NuminaMath, OpenR1
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "nlohmann/json.hpp"

namespace tandem::trainer {

enum class DataFormat {
  kAuto,
  kPlain,
  kMessages,
  kGsm8k,
  kVerl,
  kTrl,
  kPrimeRl,
  kOpenRlhf,
  kNemoRl,
  kMath
};

// Their spellings, "auto" first.
std::vector<std::pair<std::string, DataFormat>> DataFormatChoices();
std::string DataFormatName(DataFormat format);

// The columns of a layout, the preferred ones first.
struct LayoutColumns {
  std::vector<std::string> prompt, answer;
};
const LayoutColumns& ColumnsOf(DataFormat format);

// Those that are looked for in a row whose layout is not named (kAuto). "label" and "output" are
// answers beside "input" only: preference data has labels that are none.
const LayoutColumns& RecognisedColumns(const nlohmann::ordered_json& row);

// The layout that has these columns, for people to read: "verl" for prompt and
// reward_model.ground_truth; "own columns" where none has.
std::string LayoutNameOf(std::string_view prompt_column, std::string_view answer_column);

// The value of a column, or of a member of a nested one ("reward_model.ground_truth"); a column with
// the dots in its name goes first. Null if there is none or it is null.
const nlohmann::ordered_json* FindColumn(const nlohmann::ordered_json& row,
                                         std::string_view column);

// "no column \"qustion\"; the columns are question, answer; did you mean \"question\"?"
std::string NoColumn(const nlohmann::ordered_json& row, std::string_view column);

}  // namespace tandem::trainer
