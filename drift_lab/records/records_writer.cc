// WriteRecords: JSON lines, from which ReadRecords gives the same records.
#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <string_view>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/files/file_system.h"
#include "drift_lab/records/records_builder.h"
#include "drift_lab/records/records_file.h"
#include "drift_lab/records/records_header.h"

namespace tandem::drift {
namespace {

std::string Quoted(const std::string& text) {
  return nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

// As many digits as give the same number back.
template <typename Float>
void AppendNumber(Float number, std::string& out) {
  if (std::isnan(number)) {
    out += "\"NaN\"";
  } else if (std::isinf(number)) {
    out += number < 0 ? "\"-Infinity\"" : "\"Infinity\"";
  } else {
    char text[40];
    out.append(text, std::to_chars(text, text + sizeof(text), number).ptr);
  }
}

void AppendElement(float value, std::string& out) {
  if (HasValue(value)) {
    AppendNumber(value, out);
  } else {
    out += "null";
  }
}
void AppendElement(int32_t value, std::string& out) { absl::StrAppend(&out, value); }
void AppendElement(uint8_t value, std::string& out) { out += value != 0 ? '1' : '0'; }

template <typename T>
void AppendList(std::span<const T> values, std::string& out) {
  out += '[';
  for (size_t i = 0; i < values.size(); ++i) {
    if (i > 0) out += ',';
    AppendElement(values[i], out);
  }
  out += ']';
}

// Writes the fields of one row, in the order of the page.
class RowWriter {
 public:
  RowWriter(const Records& records, int64_t row, std::string& out)
      : records_(records), row_(row), out_(out) {}

  void Write() {
    out_ += '{';
    Field("token_ids");
    AppendList(records_.of_row(records_.token_ids, row_), out_);
    Drawn();
    for (size_t c = 0; c < kNumColumns; ++c) Values(static_cast<Column>(c));
    Top("behaviour", records_.behaviour_top);
    Top("proximal", records_.proximal_top);
    Versions();
    Facts();
    out_ += "}\n";
  }

 private:
  const RowFacts& facts() const { return records_.rows[static_cast<size_t>(row_)]; }

  void Field(std::string_view name) {
    if (out_.back() != '{') out_ += ',';
    absl::StrAppend(&out_, "\"", absl::string_view(name.data(), name.size()), "\":");
  }

  void Drawn() {
    const std::span<const uint8_t> drawn = records_.of_row(records_.drawn, row_);
    const auto first = std::ranges::find(drawn, 1);
    if (std::ranges::all_of(first, drawn.end(), [](uint8_t bit) { return bit == 1; })) {
      Field("prompt_length");
      absl::StrAppend(&out_, first - drawn.begin());
    } else {
      Field("loss_mask");
      AppendList(drawn, out_);
    }
  }

  // A column without a value in this row is left out, unless the row, or the column of the whole file,
  // would be lost with it.
  void Values(Column column) {
    if (!records_.has(column)) return;
    const auto place = static_cast<size_t>(column);
    const std::span<const float> values = records_.of_row(records_.columns[place], row_);
    const bool is_required = column == Column::kBehaviour || column == Column::kProximal ||
                             (records_.num_given[place] == 0 && !facts().advantage);
    if (!is_required && std::ranges::none_of(values, HasValue)) return;
    Field(ColumnName(column));
    AppendList(values, out_);
  }

  void Top(const std::string& side, const TopTokens& top) {
    if (top.offsets.empty()) return;
    const auto begin = static_cast<size_t>(records_.begin_of(row_));
    const auto end = static_cast<size_t>(records_.end_of(row_));
    if (top.offsets[begin] == top.offsets[end] && !top.ids.empty()) return;
    Field(side + "_top_ids");
    Lists(top.offsets, begin, end, std::span(top.ids));
    Field(side + "_top_logprobs");
    Lists(top.offsets, begin, end, std::span(top.logprobs));
  }

  template <typename T>
  void Lists(const std::vector<int64_t>& offsets, size_t begin, size_t end,
             std::span<const T> values) {
    for (size_t n = begin; n < end; ++n) {
      out_ += n == begin ? '[' : ',';
      const auto first = static_cast<size_t>(offsets[n]);
      AppendList(values.subspan(first, static_cast<size_t>(offsets[n + 1]) - first), out_);
    }
    out_ += ']';
  }

  void Versions() {
    const std::vector<RecordSpan>& spans = facts().spans;
    if (spans.size() == 1) {
      Field("weight_version");
      absl::StrAppend(&out_, spans.front().version);
    } else if (!spans.empty()) {
      Field("version_spans");
      for (size_t i = 0; i < spans.size(); ++i) {
        absl::StrAppend(&out_, i == 0 ? "[[" : ",[", spans[i].version, ",", spans[i].num_tokens,
                        "]");
      }
      out_ += ']';
    }
  }

  void Text(const char* name, const std::string& text) {
    if (text.empty()) return;
    Field(name);
    out_ += Quoted(text);
  }
  template <typename Number>
  void Optional(const char* name, const std::optional<Number>& number) {
    if (!number) return;
    Field(name);
    if constexpr (std::is_same_v<Number, double>) {
      AppendNumber(*number, out_);
    } else {
      absl::StrAppend(&out_, *number);
    }
  }

  void Facts() {
    Optional("proximal_version", facts().proximal_version);
    Optional("step", facts().step);
    Text("group_id", facts().group_id);
    Text("row_id", facts().row_id);
    Text("finish_reason", facts().finish_reason);
    if (facts().stop_token_kept) {
      Field("stop_token_kept");
      out_ += *facts().stop_token_kept ? "true" : "false";
    }
    Optional("reward", facts().reward);
    Optional("advantage", facts().advantage);
    Text("prompt_text", facts().prompt_text);
    Text("completion_text", facts().completion_text);
  }

  const Records& records_;
  const int64_t row_;
  std::string& out_;
};

}  // namespace

absl::Status WriteRecords(const std::string& path, const Records& records) {
  TANDEM_ASSIGN_OR_RETURN(const std::unique_ptr<AtomicFileWriter> file,
                          AtomicFileWriter::Create(path));
  std::string lines = HeaderJson(records.header) + "\n";
  constexpr size_t kBytesAtOnce = size_t{1} << 20;
  for (int64_t row = 0; row < records.num_rows(); ++row) {
    RowWriter(records, row, lines).Write();
    if (lines.size() < kBytesAtOnce) continue;
    TANDEM_RETURN_IF_ERROR(file->Write(std::as_bytes(std::span(lines))));
    lines.clear();
  }
  TANDEM_RETURN_IF_ERROR(file->Write(std::as_bytes(std::span(lines))));
  return file->Commit();
}

}  // namespace tandem::drift
