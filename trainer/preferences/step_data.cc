#include "trainer/preferences/step_data.h"

#include <algorithm>
#include <iterator>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/tables/row_reader.h"
#include "common/weights/digest.h"

namespace tandem::trainer {
namespace {

using nlohmann::json;

// A row before the tokenizer.
struct StepRow {
  std::string prompt_text, prompt_messages;
  std::vector<std::string> steps;
  std::vector<double> labels;
};

constexpr char kForm[] =
    "expected {\"prompt\": text or messages, \"steps\": [text, ..], \"labels\": [0 to 1, ..]}";

absl::StatusOr<double> ParseLabel(const json& label, size_t index, const std::string& place) {
  if (label.is_boolean()) return label.get<bool>() ? 1.0 : 0.0;
  const double value = label.is_number() ? label.get<double>() : -1;
  if (value >= 0 && value <= 1) return value;
  return InvalidArgument(place, ": \"labels\"[", index, "] is ", label.dump(),
                         "; expected 0, 1, true, false or a number between 0 and 1");
}

absl::StatusOr<StepRow> ParseStepRow(std::string_view text, const std::string& place) {
  const json parsed = json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!parsed.is_object()) return InvalidArgument(place, ": not a JSON object; ", kForm);
  const json prompt = parsed.value("prompt", json());
  const json steps = parsed.value("steps", parsed.value("completions", json()));
  const json labels = parsed.value("labels", json());
  if (!prompt.is_string() && !prompt.is_array()) {
    return InvalidArgument(place, ": \"prompt\" is missing or of another type; ", kForm);
  }
  if (!steps.is_array() || steps.empty()) {
    return InvalidArgument(place, ": \"steps\" is missing, empty or not a list; ", kForm);
  }
  if (!labels.is_array()) {
    return InvalidArgument(place, ": \"labels\" is missing or not a list; ", kForm);
  }
  if (labels.size() != steps.size()) {
    return InvalidArgument(place, ": ", labels.size(), " labels for ", steps.size(),
                           " steps; each step has one");
  }
  StepRow row;
  if (prompt.is_string()) {
    row.prompt_text = prompt.get<std::string>();
  } else {
    row.prompt_messages = prompt.dump();
  }
  for (size_t i = 0; i < steps.size(); ++i) {
    const std::string step = steps[i].is_string() ? steps[i].get<std::string>() : "";
    if (step.find_first_not_of(" \t\r\n") == std::string::npos) {
      return InvalidArgument(place, ": \"steps\"[", i, "] is blank or not a text");
    }
    row.steps.push_back(step);
    TANDEM_ASSIGN_OR_RETURN(row.labels.emplace_back(), ParseLabel(labels[i], i, place));
  }
  return row;
}

// Whether the row is kept; cuts steps off its end if it is to be truncated.
absl::StatusOr<bool> FitSteps(LabelledSteps& row, int64_t max_tokens,
                              const PreferenceDataOptions& options, const std::string& place,
                              PreferenceRowCounts& counts) {
  const auto prompt = static_cast<int64_t>(row.prompt.size());
  if (prompt + row.step_ends.back() <= max_tokens) return true;
  if (options.long_rows == LongRows::kRefuse) {
    return InvalidArgument(place, ": the prompt has ", prompt, " tokens and the steps ",
                           row.step_ends.back(), ", limit ", max_tokens,
                           "; remove the row, or set long_rows to truncate or drop");
  }
  while (!row.step_ends.empty() && prompt + row.step_ends.back() > max_tokens) {
    row.step_ends.pop_back();
  }
  if (options.long_rows == LongRows::kDrop || row.step_ends.empty()) {
    ++counts.dropped_long;
    return false;
  }
  row.labels.resize(row.step_ends.size());
  row.completion.resize(static_cast<size_t>(row.step_ends.back()));
  ++counts.truncated;
  return true;
}

absl::Status WithPlace(const std::string& place, const absl::Status& status) {
  return absl::Status(status.code(), absl::StrCat(place, ": ", status.message()));
}

}  // namespace

absl::StatusOr<std::string> RenderPrompt(const std::string& text, const std::string& messages_json,
                                         const Tokenizer& tokenizer,
                                         const std::string& tools_json) {
  if (messages_json.empty() && !tokenizer.has_chat_template()) return text;
  const std::string messages = !messages_json.empty()
                                   ? messages_json
                                   : json::array({{{"role", "user"}, {"content", text}}}).dump();
  return tokenizer.RenderChat(messages, /*add_generation_prompt=*/true, tools_json);
}

absl::StatusOr<std::vector<int32_t>> EncodePrompt(const std::string& text,
                                                  const std::string& messages_json,
                                                  const Tokenizer& tokenizer,
                                                  const std::string& tools_json) {
  TANDEM_ASSIGN_OR_RETURN(const std::string rendered,
                          RenderPrompt(text, messages_json, tokenizer, tools_json));
  TANDEM_ASSIGN_OR_RETURN(std::vector<int32_t> ids, tokenizer.Encode(rendered));
  if (ids.empty()) return absl::InvalidArgumentError("the prompt has no tokens");
  return ids;
}

absl::StatusOr<LabelledSteps> EncodeSteps(const std::vector<std::string>& steps,
                                          const Tokenizer& tokenizer) {
  LabelledSteps encoded;
  for (size_t i = 0; i < steps.size(); ++i) {
    const bool ended = steps[i].ends_with('\n') || i + 1 == steps.size();
    TANDEM_ASSIGN_OR_RETURN(const std::vector<int32_t> ids,
                            tokenizer.Encode(ended ? steps[i] : steps[i] + "\n"));
    encoded.completion.insert(encoded.completion.end(), ids.begin(), ids.end());
    encoded.step_ends.push_back(static_cast<int64_t>(encoded.completion.size()));
  }
  return encoded;
}

absl::StatusOr<StepData> ReadStepData(const std::string& path, const PreferenceDataOptions& options,
                                      const Tokenizer& tokenizer, int64_t context_tokens) {
  if (options.max_tokens > context_tokens) {
    return InvalidArgument("max_tokens is ", options.max_tokens, ", over the model's context of ",
                           context_tokens, " tokens");
  }
  const int64_t max_tokens = options.max_tokens > 0 ? options.max_tokens : context_tokens;
  TANDEM_ASSIGN_OR_RETURN(const auto rows, RowReader::Open(path));
  StepData data;
  while (true) {
    TANDEM_ASSIGN_OR_RETURN(const std::optional<TableRow> table_row, rows->Next());
    if (!table_row.has_value()) break;
    ++data.counts.rows;
    const std::string& place = table_row->place;
    TANDEM_ASSIGN_OR_RETURN(StepRow row, ParseStepRow(table_row->json, place));
    auto prompt = EncodePrompt(row.prompt_text, row.prompt_messages, tokenizer);
    if (!prompt.ok()) return WithPlace(place, prompt.status());
    auto steps = EncodeSteps(row.steps, tokenizer);
    if (!steps.ok()) return WithPlace(place, steps.status());
    steps->prompt = *std::move(prompt);
    steps->labels = std::move(row.labels);
    steps->row = table_row->number + 1;
    TANDEM_ASSIGN_OR_RETURN(const bool kept,
                            FitSteps(*steps, max_tokens, options, place, data.counts));
    if (kept) data.rows.push_back(*std::move(steps));
  }
  if (!data.rows.empty()) return data;
  return InvalidArgument(path, ": no row that can be used (", data.counts.rows, " rows, ",
                         data.counts.dropped_long, " too long)");
}

std::vector<LabelledSteps> TakeHeldOut(std::vector<LabelledSteps>& rows, double share,
                                       uint64_t seed) {
  std::vector<uint64_t> prompts;
  for (const LabelledSteps& row : rows) prompts.push_back(HashTokenIds(row.prompt));
  const std::vector<bool> held_out = ChooseHeldOut(prompts, share, seed);
  std::vector<LabelledSteps> taken, kept;
  for (size_t i = 0; i < rows.size(); ++i) {
    (held_out[i] ? taken : kept).push_back(std::move(rows[i]));
  }
  rows = std::move(kept);
  return taken;
}

}  // namespace tandem::trainer
