#include "drift_lab/importers/mapped_rows.h"

#include <algorithm>
#include <numeric>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/options/nearest_name.h"
#include "drift_lab/importers/item_fields.h"
#include "nlohmann/json.hpp"

namespace tandem::drift {
namespace {

using nlohmann::json;

std::vector<std::string> MappableFields() {
  std::vector<std::string> fields = {
      "token_ids",   "prompt_ids",     "completion_ids",   "attention_mask", "prompt_length",
      "loss_mask",   "weight_version", "proximal_version", "step",           "group_id",
      "row_id",      "finish_reason",  "stop_token_kept",  "reward",         "advantage",
      "prompt_text", "completion_text"};
  for (size_t c = 0; c < kNumColumns; ++c) fields.push_back(ColumnName(static_cast<Column>(c)));
  return fields;
}

// The elements whose mask is 1.
template <typename T>
std::vector<T> Kept(const std::vector<T>& values, const std::vector<uint8_t>& kept) {
  std::vector<T> left;
  for (size_t i = 0; i < values.size(); ++i) {
    if (kept[i] != 0) left.push_back(values[i]);
  }
  return left;
}

// An element for each token, from values of all tokens, of all with padding, or of those behind the
// prompt.
template <typename T>
absl::StatusOr<std::vector<T>> OfAllTokens(const std::vector<T>& values, T missing,
                                           const std::vector<uint8_t>& kept, const RecordRow& row,
                                           const std::string& name) {
  const size_t num_tokens = row.token_ids.size();
  const size_t num_prompt = static_cast<size_t>(row.prompt_length.value_or(0));
  if (!kept.empty() && values.size() == kept.size()) return Kept(values, kept);
  if (values.size() == num_tokens) return values;
  if (row.prompt_length && num_prompt <= num_tokens && values.size() == num_tokens - num_prompt) {
    std::vector<T> placed(num_prompt, missing);
    placed.insert(placed.end(), values.begin(), values.end());
    return placed;
  }
  return InvalidArgument(name, ": expected ", num_tokens, " elements (one for each token)",
                         row.prompt_length
                             ? absl::StrCat(" or ", num_tokens - std::min(num_prompt, num_tokens),
                                            " (those behind the prompt)")
                             : "",
                         ", found ", values.size());
}

}  // namespace

absl::StatusOr<MappedRows> MappedRows::Create(const std::vector<std::string>& maps) {
  std::map<std::string, std::string> fields;
  const std::vector<std::string> known = MappableFields();
  for (const std::string& map : maps) {
    const size_t equals = map.find('=');
    if (equals == std::string::npos || equals == 0 || equals + 1 == map.size()) {
      return InvalidArgument("--map ", map, ": expected FIELD=their.field");
    }
    const std::string field = map.substr(0, equals);
    if (std::ranges::find(known, field) == known.end()) {
      const std::string nearest = NearestIfClose(field, known);
      return InvalidArgument("--map ", map, ": there is no field ", field,
                             nearest.empty() ? "; docs/records.md lists those of a row"
                                             : absl::StrCat("; did you mean ", nearest, "?"));
    }
    fields[field] = map.substr(equals + 1);
  }
  return MappedRows(std::move(fields));
}

std::string MappedRows::Source(const std::string& field) const {
  const auto found = fields_.find(field);
  return found == fields_.end() ? field : found->second;
}

std::string MappedRows::Name(const std::string& field) const {
  const std::string source = Source(field);
  return source == field ? field : absl::StrCat(field, " (", source, ")");
}

const json* MappedRows::Find(const json& item, const std::string& field) const {
  return FindField(item, Source(field));
}

std::string MappedRows::Text(const json& item, const std::string& field) const {
  return TextOf(item, Source(field));
}

void MappedRows::Describe(RecordsHeader& header) const {
  for (size_t c = 0; c < kNumColumns; ++c) {
    const std::string name = ColumnName(static_cast<Column>(c));
    header.columns[name] = {Source(name), "none", ""};
  }
}

absl::Status MappedRows::ReadTokens(const json& item, RecordRow& row) const {
  if (const json* ids = Find(item, "token_ids"); ids != nullptr) {
    TANDEM_ASSIGN_OR_RETURN(row.token_ids, ReadIds(*ids, Name("token_ids")));
    const json* length = Find(item, "prompt_length");
    if (length != nullptr) {
      TANDEM_ASSIGN_OR_RETURN(row.prompt_length, ReadInt(*length, Name("prompt_length")));
    }
    return absl::OkStatus();
  }
  const json* prompt = Find(item, "prompt_ids");
  const json* completion = Find(item, "completion_ids");
  if (prompt == nullptr || completion == nullptr) {
    return InvalidArgument(
        Name("token_ids"),
        ": expected a list of token ids, found nothing; say where the ids are: --map "
        "token_ids=their.field, or --map prompt_ids=... --map completion_ids=...");
  }
  TANDEM_ASSIGN_OR_RETURN(row.token_ids, ReadIds(*prompt, Name("prompt_ids")));
  row.prompt_length = static_cast<int64_t>(row.token_ids.size());
  TANDEM_ASSIGN_OR_RETURN(const auto drawn, ReadIds(*completion, Name("completion_ids")));
  row.token_ids.insert(row.token_ids.end(), drawn.begin(), drawn.end());
  return absl::OkStatus();
}

absl::Status MappedRows::ReadColumns(const json& item, const std::vector<uint8_t>& kept,
                                     RecordRow& row) const {
  if (const json* mask = Find(item, "loss_mask"); mask != nullptr) {
    TANDEM_ASSIGN_OR_RETURN(const auto bits, ReadMask(*mask, Name("loss_mask")));
    TANDEM_ASSIGN_OR_RETURN(row.loss_mask,
                            OfAllTokens(bits, uint8_t{0}, kept, row, Name("loss_mask")));
  }
  for (size_t c = 0; c < kNumColumns; ++c) {
    const std::string field = ColumnName(static_cast<Column>(c));
    const json* values = Find(item, field);
    if (values == nullptr) continue;
    TANDEM_ASSIGN_OR_RETURN(const auto floats, ReadFloats(*values, Name(field)));
    TANDEM_ASSIGN_OR_RETURN(row.columns[c], OfAllTokens(floats, kNoValue, kept, row, Name(field)));
  }
  return absl::OkStatus();
}

absl::Status MappedRows::ReadFacts(const json& item, RecordRow& row) const {
  RowFacts& facts = row.facts;
  facts.row_id = Text(item, "row_id");
  facts.group_id = Text(item, "group_id");
  facts.finish_reason = Text(item, "finish_reason");
  facts.prompt_text = Text(item, "prompt_text");
  facts.completion_text = Text(item, "completion_text");
  TANDEM_ASSIGN_OR_RETURN(facts.reward, NumberOf(item, Source("reward")));
  TANDEM_ASSIGN_OR_RETURN(facts.advantage, NumberOf(item, Source("advantage")));
  TANDEM_ASSIGN_OR_RETURN(facts.step, IntOf(item, Source("step")));
  TANDEM_ASSIGN_OR_RETURN(facts.proximal_version, IntOf(item, Source("proximal_version")));
  TANDEM_ASSIGN_OR_RETURN(row.weight_version, IntOf(item, Source("weight_version")));
  const json* kept = Find(item, "stop_token_kept");
  if (kept != nullptr && kept->is_boolean()) facts.stop_token_kept = kept->get<bool>();
  return absl::OkStatus();
}

absl::Status MappedRows::Add(const json& item, ImportContext& context) const {
  RecordRow row;
  TANDEM_RETURN_IF_ERROR(ReadTokens(item, row));
  std::vector<uint8_t> kept;
  if (const json* mask = Find(item, "attention_mask"); mask != nullptr) {
    TANDEM_ASSIGN_OR_RETURN(kept, ReadMask(*mask, Name("attention_mask")));
    if (kept.size() != row.token_ids.size()) {
      return InvalidArgument(Name("attention_mask"), ": expected ", row.token_ids.size(),
                             " elements, one for each token with padding, found ", kept.size());
    }
    if (row.prompt_length) {
      const int64_t padded =
          std::clamp<int64_t>(*row.prompt_length, 0, static_cast<int64_t>(kept.size()));
      row.prompt_length = std::accumulate(kept.begin(), kept.begin() + padded, int64_t{0});
    }
    row.token_ids = Kept(row.token_ids, kept);
  }
  TANDEM_RETURN_IF_ERROR(ReadColumns(item, kept, row));
  TANDEM_RETURN_IF_ERROR(ReadFacts(item, row));
  return context.Add(std::move(row));
}

}  // namespace tandem::drift
