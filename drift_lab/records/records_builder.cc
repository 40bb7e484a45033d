#include "drift_lab/records/records_builder.h"

#include <algorithm>
#include <cmath>
#include <initializer_list>
#include <numeric>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"

namespace tandem::drift {
namespace {

absl::Status CheckLength(std::string_view field, size_t length, size_t num_tokens) {
  if (length == 0 || length == num_tokens) return absl::OkStatus();
  return InvalidArgument(field, ": expected ", num_tokens,
                         " elements, one for each of token_ids, found ", length);
}

absl::Status CheckIds(std::string_view field, const std::vector<int32_t>& ids,
                      std::optional<int64_t> vocab_size) {
  const int64_t end = vocab_size.value_or(std::numeric_limits<int64_t>::max());
  const auto wrong = std::ranges::find_if(ids, [&](int32_t id) { return id < 0 || id >= end; });
  if (wrong == ids.end()) return absl::OkStatus();
  return InvalidArgument(
      field, ": expected ids of at least 0",
      vocab_size ? absl::StrCat(" and below the header's vocab_size, ", *vocab_size) : "",
      ", found ", *wrong, " at element ", wrong - ids.begin());
}

absl::Status CheckDrawn(const RecordRow& row) {
  const auto num_tokens = static_cast<int64_t>(row.token_ids.size());
  if (!row.prompt_length && row.loss_mask.empty()) {
    return InvalidArgument("prompt_length: expected it or loss_mask, found neither");
  }
  TANDEM_RETURN_IF_ERROR(CheckLength("loss_mask", row.loss_mask.size(), row.token_ids.size()));
  const auto wrong = std::ranges::find_if(row.loss_mask, [](uint8_t bit) { return bit > 1; });
  if (wrong != row.loss_mask.end()) {
    return InvalidArgument("loss_mask: expected 0 or 1, found ", int{*wrong}, " at element ",
                           wrong - row.loss_mask.begin());
  }
  if (!row.prompt_length) return absl::OkStatus();
  if (*row.prompt_length < 0 || *row.prompt_length > num_tokens) {
    return InvalidArgument("prompt_length: expected 0 to ", num_tokens,
                           " (the tokens of the row), found ", *row.prompt_length);
  }
  const auto prompt =
      std::span(row.loss_mask)
          .first(row.loss_mask.empty() ? 0 : static_cast<size_t>(*row.prompt_length));
  const auto one = std::ranges::find(prompt, 1);
  if (one == prompt.end()) return absl::OkStatus();
  return InvalidArgument("loss_mask: expected 0 on the ", *row.prompt_length,
                         " tokens of the prompt (prompt_length), found 1 at element ",
                         one - prompt.begin());
}

absl::Status CheckTop(std::string_view side, const RowTopTokens& top, size_t num_tokens,
                      std::optional<int64_t> vocab_size) {
  const std::string ids = absl::StrCat(std::string(side), "_top_ids");
  const std::string logprobs = absl::StrCat(std::string(side), "_top_logprobs");
  TANDEM_RETURN_IF_ERROR(CheckLength(ids, top.num_ids.size(), num_tokens));
  TANDEM_RETURN_IF_ERROR(CheckLength(logprobs, top.num_logprobs.size(), num_tokens));
  if (top.num_ids.empty() != top.num_logprobs.empty()) {
    const auto& [absent, given] =
        top.num_ids.empty() ? std::pair(ids, logprobs) : std::pair(logprobs, ids);
    return InvalidArgument(absent, ": expected beside ", given, ", found nothing");
  }
  for (size_t t = 0; t < top.num_ids.size(); ++t) {
    if (top.num_ids[t] != top.num_logprobs[t]) {
      return InvalidArgument(logprobs, ": expected ", top.num_ids[t], " log-probs at element ", t,
                             ", as many as in ", ids, ", found ", top.num_logprobs[t]);
    }
  }
  return CheckIds(ids, top.ids, vocab_size);
}

int64_t NumDrawn(const RecordRow& row) {
  if (row.loss_mask.empty()) {
    return static_cast<int64_t>(row.token_ids.size()) - *row.prompt_length;
  }
  return std::accumulate(row.loss_mask.begin(), row.loss_mask.end(), int64_t{0});
}

absl::Status CheckVersions(const RecordRow& row) {
  const std::vector<RecordSpan>& spans = row.facts.spans;
  const int64_t num_drawn = NumDrawn(row);
  int64_t sum = 0;
  for (const RecordSpan& span : spans) {
    if (span.num_tokens < 1 || span.num_tokens > num_drawn) {
      return InvalidArgument("version_spans: expected spans of 1 to ", num_drawn,
                             " tokens (those drawn), found [", span.version, ", ", span.num_tokens,
                             "]");
    }
    sum += span.num_tokens;
    if (row.weight_version && *row.weight_version != span.version) {
      return InvalidArgument(
          "weight_version: expected the version of every span, or the field left "
          "out, found ",
          *row.weight_version, " beside a span of version ", span.version);
    }
  }
  if (spans.empty() || sum == num_drawn) return absl::OkStatus();
  return InvalidArgument("version_spans: expected numbers of tokens that add up to the ", num_drawn,
                         " drawn ones, found ", sum);
}

}  // namespace

void RecordRow::Clear() {
  token_ids.clear();
  prompt_length.reset();
  loss_mask.clear();
  for (std::vector<float>& values : columns) values.clear();
  for (RowTopTokens* top : {&behaviour_top, &proximal_top}) {
    top->num_ids.clear();
    top->num_logprobs.clear();
    top->ids.clear();
    top->logprobs.clear();
  }
  weight_version.reset();
  facts = {};
}

RecordsBuilder::RecordsBuilder(std::string path, RecordsHeader header) {
  records_.path = std::move(path);
  records_.header = std::move(header);
}

absl::Status RecordsBuilder::CheckRow(const RecordRow& row) const {
  const size_t num_tokens = row.token_ids.size();
  const std::optional<int64_t> vocab_size = records_.header.vocab_size;
  if (num_tokens == 0) {
    return InvalidArgument("token_ids: expected the ids of the row's tokens, found none");
  }
  TANDEM_RETURN_IF_ERROR(CheckIds("token_ids", row.token_ids, vocab_size));
  TANDEM_RETURN_IF_ERROR(CheckDrawn(row));
  for (size_t c = 0; c < kNumColumns; ++c) {
    TANDEM_RETURN_IF_ERROR(
        CheckLength(ColumnName(static_cast<Column>(c)), row.columns[c].size(), num_tokens));
  }
  const auto is_absent = [&](Column column) {
    return row.columns[static_cast<size_t>(column)].empty();
  };
  if (is_absent(Column::kBehaviour) && is_absent(Column::kProximal)) {
    return InvalidArgument(
        "behaviour_logprobs: expected it or proximal_logprobs in every row, found neither");
  }
  if (row.facts.advantage && !is_absent(Column::kAdvantages)) {
    return InvalidArgument("advantages: expected it or advantage, found both");
  }
  TANDEM_RETURN_IF_ERROR(CheckTop("behaviour", row.behaviour_top, num_tokens, vocab_size));
  TANDEM_RETURN_IF_ERROR(CheckTop("proximal", row.proximal_top, num_tokens, vocab_size));
  return CheckVersions(row);
}

void RecordsBuilder::AppendTop(const RowTopTokens& row, size_t num_tokens, TopTokens& tops) {
  if (row.num_ids.empty() && tops.offsets.empty()) return;
  if (tops.offsets.empty()) tops.offsets.assign(records_.token_ids.size() + 1, 0);
  for (size_t t = 0; t < num_tokens; ++t) {
    tops.offsets.push_back(tops.offsets.back() + (row.num_ids.empty() ? 0 : row.num_ids[t]));
  }
  tops.ids.insert(tops.ids.end(), row.ids.begin(), row.ids.end());
  tops.logprobs.insert(tops.logprobs.end(), row.logprobs.begin(), row.logprobs.end());
}

// What stands at tokens that were not drawn is nobody's fault: writers fill prompts with anything.
void RecordsBuilder::CountNan(const RecordRow& row, size_t num_before) {
  for (size_t c = 0; c < kNumColumns; ++c) {
    const std::vector<float>& values = row.columns[c];
    for (size_t t = 0; t < values.size(); ++t) {
      const bool is_nan = std::isnan(values[t]) && HasValue(values[t]);
      records_.num_nan[c] += is_nan && records_.drawn[num_before + t] != 0;
    }
  }
}

absl::Status RecordsBuilder::AddRow(const RecordRow& row) {
  TANDEM_RETURN_IF_ERROR(CheckRow(row));
  const size_t num_before = records_.token_ids.size();
  const size_t num_tokens = row.token_ids.size();
  AppendTop(row.behaviour_top, num_tokens, records_.behaviour_top);
  AppendTop(row.proximal_top, num_tokens, records_.proximal_top);
  for (size_t c = 0; c < kNumColumns; ++c) {
    const std::vector<float>& values = row.columns[c];
    std::vector<float>& column = records_.columns[c];
    if (values.empty()) {
      if (!column.empty()) column.resize(num_before + num_tokens, kNoValue);
      continue;
    }
    column.resize(num_before, kNoValue);  // rows before this one had no such column
    column.insert(column.end(), values.begin(), values.end());
    records_.num_given[c] += std::ranges::count_if(values, HasValue);
  }
  records_.token_ids.insert(records_.token_ids.end(), row.token_ids.begin(), row.token_ids.end());
  if (row.loss_mask.empty()) {
    records_.drawn.resize(num_before + static_cast<size_t>(*row.prompt_length), 0);
    records_.drawn.resize(num_before + num_tokens, 1);
  } else {
    records_.drawn.insert(records_.drawn.end(), row.loss_mask.begin(), row.loss_mask.end());
  }
  CountNan(row, num_before);
  records_.offsets.push_back(static_cast<int64_t>(num_before + num_tokens));
  records_.rows.push_back(row.facts);
  if (row.weight_version && row.facts.spans.empty() && NumDrawn(row) > 0) {
    records_.rows.back().spans = {{*row.weight_version, NumDrawn(row)}};
  }
  return absl::OkStatus();
}

Records RecordsBuilder::Finish() { return std::exchange(records_, Records{}); }

}  // namespace tandem::drift
