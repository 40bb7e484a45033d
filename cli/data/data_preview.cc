#include "cli/data/data_preview.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <optional>
#include <unordered_set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "cli/data/token_text.h"
#include "common/base/printable.h"
#include "common/base/status_macros.h"
#include "common/tables/row_reader.h"
#include "trainer/data/held_out.h"
#include "trainer/data/row_parser.h"
#include "trainer/prompts/prompt_reader.h"
#include "xxhash.h"

namespace tandem::cli {
namespace {

using nlohmann::ordered_json;
using trainer::PromptRow;

constexpr int64_t kProgressEvery = 1000;  // rows
constexpr int kBins = 10, kBarWidth = 40;
constexpr std::pair<const char*, double> kQuantiles[] = {
    {"min", 0}, {"p50", 0.5}, {"p90", 0.9}, {"p99", 0.99}, {"max", 1}};

int64_t NumCharacters(std::string_view text) {
  return std::ranges::count_if(text, [](char c) { return (c & 0xc0) != 0x80; });
}

// A prompt without a tokenizer: the text, or messages under the names of their roles.
std::string PlainPrompt(const PromptRow& row) {
  if (row.messages_json.empty()) return row.text;
  std::string text;
  for (const ordered_json& message : ordered_json::parse(row.messages_json)) {
    const ordered_json content = message.value("content", ordered_json());
    absl::StrAppend(&text, text.empty() ? "" : "\n", message["role"].get<std::string>(), ": ",
                    content.is_string() ? content.get<std::string>() : message.dump());
  }
  return text;
}

std::string LayoutOf(const PromptRow& row) {
  return absl::StrCat(trainer::LayoutNameOf(row.prompt_column, row.answer_column), ": ",
                      row.prompt_column, " / ",
                      row.answer_column.empty() ? "no answer" : row.answer_column);
}

class Previewer {
 public:
  Previewer(const trainer::DataOptions& options, trainer::RowParser parser,
            const Tokenizer* tokenizer, int64_t num_shown)
      : options_(options),
        parser_(std::move(parser)),
        tokenizer_(tokenizer),
        num_shown_(num_shown) {}

  void Add(const TableRow& row) {
    ++preview_.num_rows;
    CountColumns(row.json);
    auto parsed = parser_.Parse(row.json, row.place);
    if (!parsed.ok()) return Wrong(parsed.status());
    if (absl::Status added = AddPrompt(*parsed, row.place); !added.ok()) return Wrong(added);
    ++preview_.layouts[LayoutOf(*parsed)];
    preview_.num_without_answer += !parsed->has_answer || parsed->answer.empty();
    preview_.num_with_tools += !parsed->tools_json.empty();
    const bool is_new =
        seen_.insert(XXH3_64bits(parsed->identity.data(), parsed->identity.size())).second;
    preview_.num_duplicates += !is_new;
    preview_.num_held_out +=
        options_.eval_share > 0 && trainer::IsHeldOut(parsed->identity, options_.eval_share);
  }

  DataPreview Take() {
    preview_.has_tokens = tokenizer_ != nullptr;
    return std::move(preview_);
  }

 private:
  void Wrong(const absl::Status& status) {
    if (preview_.num_wrong++ == 0) preview_.first_error = std::string(status.message());
  }

  void CountColumns(std::string_view text) {
    const ordered_json row = ordered_json::parse(text, nullptr, /*allow_exceptions=*/false);
    if (!row.is_object()) return;
    for (const auto& [name, value] : row.items()) {
      auto found = std::ranges::find(preview_.columns, name, [](const auto& c) { return c.first; });
      if (found == preview_.columns.end()) {
        found = preview_.columns.insert(found, {name, 0});
      }
      found->second += !value.is_null();
    }
  }

  absl::Status AddPrompt(const PromptRow& row, const std::string& place) {
    ShownPrompt shown{.place = place, .answer = row.answer};
    if (tokenizer_ == nullptr) {
      shown.text = PlainPrompt(row);
      preview_.lengths.push_back(NumCharacters(shown.text));
    } else {
      TANDEM_ASSIGN_OR_RETURN(const experience::v1::Prompt prompt,
                              trainer::TokenisePrompt(row, place, options_.chat, *tokenizer_));
      shown.text = prompt.text();
      shown.ids.assign(prompt.token_ids().begin(), prompt.token_ids().end());
      preview_.lengths.push_back(prompt.token_ids_size());
    }
    if (std::ssize(preview_.first) < num_shown_) preview_.first.push_back(std::move(shown));
    return absl::OkStatus();
  }

  const trainer::DataOptions& options_;
  const trainer::RowParser parser_;
  const Tokenizer* const tokenizer_;
  const int64_t num_shown_;
  std::unordered_set<uint64_t> seen_;  // hashes of prompts
  DataPreview preview_;
};

int64_t NumOver(const std::vector<int64_t>& lengths, int64_t limit) {
  return std::ranges::count_if(lengths, [limit](int64_t length) { return length > limit; });
}

std::string CountText(int64_t count, std::string_view one, std::string_view many) {
  return absl::StrCat(count, " ", std::string(count == 1 ? one : many));
}

void AddLengthLines(const DataPreview& preview, const PreviewLimits& limits,
                    std::vector<std::string>& lines) {
  std::vector<int64_t> sorted = preview.lengths;
  std::ranges::sort(sorted);
  if (sorted.empty()) return;
  lines.push_back(absl::StrFormat(
      "length: %s of a prompt: least %d, median %d, 90 %% %d, 99 %% %d, most %d",
      preview.has_tokens ? "tokens" : "characters", sorted.front(), NearestRank(sorted, 0.5),
      NearestRank(sorted, 0.9), NearestRank(sorted, 0.99), sorted.back()));
  for (const std::string& line : Histogram(sorted, kBins, kBarWidth)) lines.push_back("  " + line);
  if (!preview.has_tokens) return;
  if (limits.max_prompt_tokens > 0) {
    lines.push_back(absl::StrCat("over max_prompt_tokens ", limits.max_prompt_tokens, ": ",
                                 NumOver(sorted, limits.max_prompt_tokens)));
  }
  if (limits.context_tokens > 0) {
    lines.push_back(
        absl::StrCat("over the ", limits.context_tokens,
                     " tokens that the context leaves: ", NumOver(sorted, limits.context_tokens)));
  }
}

}  // namespace

absl::StatusOr<DataPreview> PreviewData(const std::string& path, const DatasetPart& part,
                                        const trainer::DataOptions& options,
                                        const Tokenizer* tokenizer, int64_t num_shown,
                                        absl::FunctionRef<void(int64_t)> progress) {
  TANDEM_ASSIGN_OR_RETURN(trainer::RowParser parser,
                          trainer::RowParser::Create(options, /*needs_answer=*/false));
  TANDEM_ASSIGN_OR_RETURN(const auto rows, RowReader::Open(path, part));
  Previewer previewer(options, std::move(parser), tokenizer, num_shown);
  for (int64_t count = 1;; ++count) {
    TANDEM_ASSIGN_OR_RETURN(const std::optional<TableRow> row, rows->Next());
    if (!row.has_value()) break;
    previewer.Add(*row);
    if (count % kProgressEvery == 0) progress(count);
  }
  DataPreview preview = previewer.Take();
  preview.path = path;
  preview.description = rows->dataset().Describe();
  return preview;
}

int64_t NearestRank(const std::vector<int64_t>& sorted, double q) {
  if (sorted.empty()) return 0;
  const auto rank = static_cast<int64_t>(std::ceil(q * static_cast<double>(sorted.size())));
  return sorted[static_cast<size_t>(std::clamp<int64_t>(rank, 1, std::ssize(sorted)) - 1)];
}

std::vector<std::string> Histogram(const std::vector<int64_t>& sorted, int num_bins, int width) {
  if (sorted.empty()) return {};
  const int64_t least = sorted.front(), range = sorted.back() - least + 1;
  const int64_t bin_width = (range + num_bins - 1) / num_bins;
  std::vector<int64_t> counts(static_cast<size_t>((range + bin_width - 1) / bin_width), 0);
  for (const int64_t value : sorted) ++counts[static_cast<size_t>((value - least) / bin_width)];
  const int64_t most = *std::ranges::max_element(counts);
  std::vector<std::string> lines;
  for (size_t i = 0; i < counts.size(); ++i) {
    const int64_t from = least + static_cast<int64_t>(i) * bin_width;
    // A bin that is not empty has a mark, however few values are in it.
    const int64_t marks = (counts[i] * width + most - 1) / most;
    lines.push_back(absl::StrFormat("%7d .. %-7d %7d %s", from, from + bin_width - 1, counts[i],
                                    std::string(static_cast<size_t>(marks), '#')));
  }
  return lines;
}

std::vector<std::string> SummaryLines(const DataPreview& preview, const PreviewLimits& limits) {
  std::vector<std::string> lines = {absl::StrCat(preview.path, ": ", preview.description, ", ",
                                                 CountText(preview.num_rows, "row", "rows"))};
  std::vector<std::string> columns;
  for (const auto& [name, count] : preview.columns) {
    columns.push_back(count == preview.num_rows
                          ? Printable(name)
                          : absl::StrCat(Printable(name), " (in ", count, " rows)"));
  }
  lines.push_back("columns: " + absl::StrJoin(columns, ", "));
  for (const auto& [layout, count] : preview.layouts) {
    lines.push_back(
        absl::StrCat("format ", Printable(layout),
                     count == preview.num_rows ? "" : absl::StrCat(" (", count, " rows)")));
  }
  lines.push_back(absl::StrCat(
      CountText(preview.num_duplicates, "row repeats", "rows repeat"), " an earlier prompt, ",
      preview.num_without_answer, " without an answer",
      preview.num_with_tools > 0 ? absl::StrCat(", ", preview.num_with_tools, " with tools") : "",
      preview.num_held_out > 0 ? absl::StrCat(", ", preview.num_held_out, " held out") : ""));
  AddLengthLines(preview, limits, lines);
  if (preview.num_wrong > 0) {
    lines.push_back(absl::StrCat(CountText(preview.num_wrong, "row", "rows"),
                                 " cannot be used, the first: ", Printable(preview.first_error)));
  }
  return lines;
}

absl::StatusOr<std::string> ShownPrompts(const DataPreview& preview, const Tokenizer* tokenizer,
                                         bool in_colour) {
  std::string out;
  for (const ShownPrompt& prompt : preview.first) {
    std::string text = PrintableLines(prompt.text), special;
    if (tokenizer != nullptr) {
      TANDEM_ASSIGN_OR_RETURN(const TokenText tokens,
                              ShowTokens(prompt.ids, *tokenizer, in_colour));
      text = tokens.text;
      for (const auto& [token, count] : tokens.special) {
        absl::StrAppend(&special, special.empty() ? "; special tokens: " : ", ", Printable(token),
                        " x", count);
      }
    }
    absl::StrAppend(&out, "\n--- ", prompt.place,
                    prompt.ids.empty() ? "" : absl::StrCat(": ", prompt.ids.size(), " tokens"),
                    special, "\n", text, text.ends_with('\n') ? "" : "\n",
                    "--- answer: ", prompt.answer.empty() ? "none" : Printable(prompt.answer),
                    "\n");
  }
  return out;
}

std::string PreviewJson(const DataPreview& preview, const PreviewLimits& limits) {
  std::vector<int64_t> sorted = preview.lengths;
  std::ranges::sort(sorted);
  ordered_json columns = ordered_json::object();
  for (const auto& [name, count] : preview.columns) columns[name] = count;
  ordered_json first = ordered_json::array();
  for (const ShownPrompt& prompt : preview.first) {
    first.push_back({{"place", prompt.place},
                     {"text", prompt.text},
                     {"token_ids", prompt.ids},
                     {"answer", prompt.answer}});
  }
  ordered_json lengths = {{"unit", preview.has_tokens ? "tokens" : "characters"}};
  for (const auto& [name, q] : kQuantiles) {
    lengths[name] = NearestRank(sorted, q);
  }
  if (preview.has_tokens && limits.max_prompt_tokens > 0) {
    lengths["over_max_prompt_tokens"] = NumOver(sorted, limits.max_prompt_tokens);
  }
  if (preview.has_tokens && limits.context_tokens > 0) {
    lengths["over_context"] = NumOver(sorted, limits.context_tokens);
  }
  const ordered_json out = {{"path", preview.path},
                            {"description", preview.description},
                            {"rows", preview.num_rows},
                            {"formats", preview.layouts},
                            {"columns", columns},
                            {"duplicates", preview.num_duplicates},
                            {"without_answer", preview.num_without_answer},
                            {"with_tools", preview.num_with_tools},
                            {"held_out", preview.num_held_out},
                            {"wrong", preview.num_wrong},
                            {"first_error", preview.first_error},
                            {"lengths", lengths},
                            {"first", first}};
  return out.dump(-1, ' ', /*ensure_ascii=*/false, ordered_json::error_handler_t::replace);
}

}  // namespace tandem::cli
