#include "drift_lab/records/json_rows.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <initializer_list>
#include <map>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/printable.h"
#include "common/base/status_macros.h"
#include "common/options/nearest_name.h"
#include "drift_lab/records/json_cursor.h"

namespace tandem::drift {
namespace {

constexpr char kNumber[] = "a number, null, \"NaN\", \"Infinity\" or \"-Infinity\"";

// Reads the value of one field after the other. The functions that take the value of a field return
// an error without the field's name.
class RowReader {
 public:
  RowReader(std::string_view json, RecordRow& row) : cursor_(json), row_(row) {}

  JsonCursor& cursor() { return cursor_; }
  RecordRow& row() { return row_; }

  absl::Status Expected(std::string_view what) {
    const std::string found = cursor_.Found();
    return InvalidArgument("expected ", what, ", found ", found, " at byte ", cursor_.byte());
  }

  // Calls `element` for each element of a list, which returns an error or OK after taking it.
  template <typename Element>
  absl::Status List(std::string_view what, const Element& element) {
    if (!cursor_.Take('[')) return Expected(what);
    if (cursor_.Take(']')) return absl::OkStatus();
    do {
      TANDEM_RETURN_IF_ERROR(element());
    } while (cursor_.Take(','));
    return cursor_.Take(']') ? absl::OkStatus() : Expected("',' or ']'");
  }

  absl::Status Ids(std::vector<int32_t>& ids) {
    return List("a list of ids", [&]() -> absl::Status {
      int32_t id = 0;
      if (!cursor_.TakeInt(id)) return Expected("a token id (a whole number below 2^31)");
      ids.push_back(id);
      return absl::OkStatus();
    });
  }

  absl::Status Floats(std::vector<float>& values) {
    return List("a list of numbers", [&]() -> absl::Status {
      float value = 0;
      if (cursor_.TakeFloat(value)) {
        values.push_back(std::isnan(value) ? kGivenNan : value);
      } else if (cursor_.TakeWord("null")) {
        values.push_back(kNoValue);
      } else {
        return Expected(kNumber);
      }
      return absl::OkStatus();
    });
  }

  absl::Status Mask() {
    const absl::Status status = List("a list of 0 and 1", [&]() -> absl::Status {
      int32_t bit = 0;
      if (cursor_.TakeWord("true")) {
        bit = 1;
      } else if (!cursor_.TakeWord("false") && !cursor_.TakeInt(bit)) {
        return Expected("0 or 1");
      }
      if (bit != 0 && bit != 1) return InvalidArgument("expected 0 or 1, found ", bit);
      row_.loss_mask.push_back(static_cast<uint8_t>(bit));
      return absl::OkStatus();
    });
    return status.ok() ? NotEmpty(row_.loss_mask.size()) : status;
  }

  absl::Status Column(Column column) {
    std::vector<float>& values = row_.column(column);
    TANDEM_RETURN_IF_ERROR(Floats(values));
    return NotEmpty(values.size());
  }

  // A list of lists, one for each token; null for a token is an empty one.
  template <typename T, typename Take>
  absl::Status Lists(std::vector<int32_t>& counts, std::vector<T>& values, const Take& take) {
    const absl::Status status = List("a list of lists", [&]() -> absl::Status {
      const size_t before = values.size();
      if (!cursor_.TakeWord("null")) TANDEM_RETURN_IF_ERROR(take(values));
      counts.push_back(static_cast<int32_t>(values.size() - before));
      return absl::OkStatus();
    });
    return status.ok() ? NotEmpty(counts.size()) : status;
  }
  absl::Status TopIds(RowTopTokens& top) {
    return Lists(top.num_ids, top.ids, [this](auto& values) { return Ids(values); });
  }
  absl::Status TopLogprobs(RowTopTokens& top) {
    return Lists(top.num_logprobs, top.logprobs, [this](auto& values) { return Floats(values); });
  }

  absl::Status Spans() {
    return List("a list of [version, num_tokens]", [&]() -> absl::Status {
      RecordSpan span;
      const bool is_pair = cursor_.Take('[') && cursor_.TakeInt(span.version) &&
                           cursor_.Take(',') && cursor_.TakeInt(span.num_tokens) &&
                           cursor_.Take(']');
      if (!is_pair) return Expected("[version, num_tokens] of whole numbers");
      row_.facts.spans.push_back(span);
      return absl::OkStatus();
    });
  }

  absl::Status Int(std::optional<int64_t>& value) {
    return cursor_.TakeInt(value.emplace()) ? absl::OkStatus() : Expected("a whole number");
  }
  absl::Status Float(std::optional<double>& value) {
    return cursor_.TakeFloat(value.emplace()) ? absl::OkStatus() : Expected("a number");
  }
  absl::Status Text(std::string& text) {
    return cursor_.TakeText(text) ? absl::OkStatus() : Expected("a text in UTF-8");
  }
  absl::Status Flag(std::optional<bool>& flag) {
    flag = cursor_.TakeWord("true");
    return *flag || cursor_.TakeWord("false") ? absl::OkStatus() : Expected("true or false");
  }
  absl::Status Group() {
    int64_t number = 0;
    if (cursor_.TakeInt(number)) {
      row_.facts.group_id = absl::StrCat(number);
      return absl::OkStatus();
    }
    return cursor_.TakeText(row_.facts.group_id) ? absl::OkStatus()
                                                 : Expected("a whole number or a text");
  }
  absl::Status Extra() {
    return cursor_.TakeObject() ? absl::OkStatus()
                                : Expected(absl::StrCat("an object, nested at most ",
                                                        JsonCursor::kMostNested, " deep"));
  }

 private:
  // An empty list would look like an absent field from here on.
  absl::Status NotEmpty(size_t size) const {
    if (size > 0) return absl::OkStatus();
    return InvalidArgument("expected one element for each of token_ids, found an empty list");
  }

  JsonCursor cursor_;
  RecordRow& row_;
};

struct RowField {
  const char* name;
  absl::Status (*read)(RowReader& reader);
};

template <Column kColumn>
absl::Status ReadColumn(RowReader& reader) {
  return reader.Column(kColumn);
}

constexpr auto kRowFields = std::to_array<RowField>({
    {"token_ids", [](RowReader& r) { return r.Ids(r.row().token_ids); }},
    {"prompt_length", [](RowReader& r) { return r.Int(r.row().prompt_length); }},
    {"loss_mask", [](RowReader& r) { return r.Mask(); }},
    {"behaviour_logprobs", &ReadColumn<Column::kBehaviour>},
    {"proximal_logprobs", &ReadColumn<Column::kProximal>},
    {"behaviour_raw_logprobs", &ReadColumn<Column::kBehaviourRaw>},
    {"behaviour_score_logprobs", &ReadColumn<Column::kBehaviourScore>},
    {"reference_logprobs", &ReadColumn<Column::kReference>},
    {"behaviour_entropy", &ReadColumn<Column::kBehaviourEntropy>},
    {"proximal_entropy", &ReadColumn<Column::kProximalEntropy>},
    {"behaviour_top_ids", [](RowReader& r) { return r.TopIds(r.row().behaviour_top); }},
    {"proximal_top_ids", [](RowReader& r) { return r.TopIds(r.row().proximal_top); }},
    {"behaviour_top_logprobs", [](RowReader& r) { return r.TopLogprobs(r.row().behaviour_top); }},
    {"proximal_top_logprobs", [](RowReader& r) { return r.TopLogprobs(r.row().proximal_top); }},
    {"version_spans", [](RowReader& r) { return r.Spans(); }},
    {"weight_version", [](RowReader& r) { return r.Int(r.row().weight_version); }},
    {"proximal_version", [](RowReader& r) { return r.Int(r.row().facts.proximal_version); }},
    {"step", [](RowReader& r) { return r.Int(r.row().facts.step); }},
    {"group_id", [](RowReader& r) { return r.Group(); }},
    {"row_id", [](RowReader& r) { return r.Text(r.row().facts.row_id); }},
    {"finish_reason", [](RowReader& r) { return r.Text(r.row().facts.finish_reason); }},
    {"stop_token_kept", [](RowReader& r) { return r.Flag(r.row().facts.stop_token_kept); }},
    {"reward", [](RowReader& r) { return r.Float(r.row().facts.reward); }},
    {"advantage", [](RowReader& r) { return r.Float(r.row().facts.advantage); }},
    {"advantages", &ReadColumn<Column::kAdvantages>},
    {"prompt_text", [](RowReader& r) { return r.Text(r.row().facts.prompt_text); }},
    {"completion_text", [](RowReader& r) { return r.Text(r.row().facts.completion_text); }},
    {"extra", [](RowReader& r) { return r.Extra(); }},
});

// What frameworks call the fields of a row.
const std::map<std::string, std::string, std::less<>>& ForeignNames() {
  static const auto* const names = new std::map<std::string, std::string, std::less<>>{
      {"rollout_log_probs", "behaviour_logprobs"},
      {"generation_logprobs", "behaviour_logprobs"},
      {"sampling_per_token_logps", "behaviour_logprobs"},
      {"inference_logprobs", "behaviour_logprobs"},
      {"generator_logprobs", "behaviour_logprobs"},
      {"vllm_logprobs", "behaviour_logprobs"},
      {"old_log_probs", "proximal_logprobs"},
      {"old_per_token_logps", "proximal_logprobs"},
      {"prev_logprobs", "proximal_logprobs"},
      {"prox_logp", "proximal_logprobs"},
      {"trainer_logprobs", "proximal_logprobs"},
      {"ref_log_prob", "reference_logprobs"},
      {"ref_log_probs", "reference_logprobs"},
      {"ref_logprobs", "reference_logprobs"},
      {"response_mask", "loss_mask"},
      {"completion_mask", "loss_mask"},
      {"assistant_masks", "loss_mask"},
      {"input_ids", "token_ids"},
      {"tokens", "token_ids"},
  };
  return *names;
}

bool IsIn(std::string_view name, std::initializer_list<std::string_view> list) {
  return std::ranges::find(list, name) != list.end();
}

size_t FieldPlace(std::string_view name) {
  const auto found =
      std::ranges::find_if(kRowFields, [&](const RowField& field) { return name == field.name; });
  return static_cast<size_t>(found - kRowFields.begin());
}

absl::Status ReadField(RowReader& reader, std::array<bool, kRowFields.size()>& seen) {
  std::string name;
  if (!reader.cursor().TakeText(name)) return reader.Expected("the name of a field");
  if (!reader.cursor().Take(':')) return reader.Expected("':' after the name of a field");
  const size_t place = FieldPlace(name);
  if (place == kRowFields.size()) {
    return InvalidArgument(Printable(name), ": expected a field of docs/records.md, found another",
                           FieldSuggestion(name, RowFieldNames()),
                           " (what is your own belongs into `extra`)",
                           RightPlace(name, RowFieldNames()));
  }
  if (std::exchange(seen[place], true)) {
    return InvalidArgument(name, ": expected once in a row, found twice");
  }
  if (name != "token_ids" && reader.cursor().TakeWord("null")) return absl::OkStatus();
  const absl::Status status = kRowFields[place].read(reader);
  return status.ok() ? status : InvalidArgument(name, ": ", status.message());
}

}  // namespace

const std::vector<std::string>& RowFieldNames() {
  static const auto* const names = [] {
    auto* all = new std::vector<std::string>;
    for (const RowField& field : kRowFields) all->push_back(field.name);
    return all;
  }();
  return *names;
}

std::string FieldSuggestion(std::string_view name, const std::vector<std::string>& names) {
  std::string nearest = NearestIfClose(name, names);
  const auto foreign = ForeignNames().find(name);
  if (foreign != ForeignNames().end() && std::ranges::count(names, foreign->second) > 0) {
    nearest = foreign->second;
  }
  return nearest.empty() ? "" : absl::StrCat("; did you mean ", nearest, "?");
}

const char* RightPlace(std::string_view name, const std::vector<std::string>& names) {
  const auto has = [&](const char* field) { return std::ranges::count(names, field) > 0; };
  const bool is_row = has("token_ids"), is_header = has("tandem_capture");
  if ((is_row || is_header) &&
      IsIn(name, {"engine", "engine_version", "dtype", "weights", "temperature", "top_k", "top_p",
                  "min_p", "repetition_penalty", "frequency_penalty", "presence_penalty",
                  "min_tokens", "policy"})) {
    return "; it belongs into the header, in `behaviour` or `proximal`";
  }
  if (name == "policy" && has("temperature")) return "; only `proximal` has it";
  if (is_header && name == "logprobs") {
    return "; it belongs into `behaviour` or `proximal`, and is \"raw\" or \"processed\"";
  }
  if (!is_row) return "";
  if (IsIn(name, {"logprobs", "log_probs", "logps", "old_logprobs", "token_logprobs"})) {
    return "; the columns of the two sides are behaviour_logprobs (of the engine that drew the "
           "tokens) and proximal_logprobs (of the trainer)";
  }
  if (IsIn(name, {"entropy", "entropies"})) {
    return "; the columns of the two sides are behaviour_entropy and proximal_entropy";
  }
  if (IsIn(name, {"top_ids", "top_logprobs"})) {
    return "; the columns of the two sides are behaviour_top_ids with behaviour_top_logprobs, and "
           "proximal_top_ids with proximal_top_logprobs";
  }
  if (IsIn(name, {"prompt_ids", "prompt_token_ids", "completion_ids", "response_ids"})) {
    return "; token_ids has the ids of prompt and completion, and prompt_length the number of the "
           "former";
  }
  if (IsIn(name, {"model", "tokenizer", "vocab_size", "eos_token_ids"})) {
    return "; it belongs into the header";
  }
  return name == "tandem_capture" ? "; it begins a header, and a file has one: were two joined?"
                                  : "";
}

absl::Status ParseRow(std::string_view json, RecordRow& row) {
  row.Clear();
  RowReader reader(json, row);
  std::array<bool, kRowFields.size()> seen{};
  if (!reader.cursor().Take('{')) return reader.Expected("a JSON object, one row a line");
  if (!reader.cursor().Take('}')) {
    do {
      TANDEM_RETURN_IF_ERROR(ReadField(reader, seen));
    } while (reader.cursor().Take(','));
    if (!reader.cursor().Take('}')) return reader.Expected("',' or '}' after a field");
  }
  return reader.cursor().AtEnd() ? absl::OkStatus() : reader.Expected("the end of the row");
}

}  // namespace tandem::drift
