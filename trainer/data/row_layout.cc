#include "trainer/data/row_layout.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/options/nearest_name.h"

namespace tandem::trainer {
namespace {

using nlohmann::ordered_json;

struct Layout {
  DataFormat format;
  std::string name;
  LayoutColumns columns;
};

const std::vector<Layout>& Layouts() {
  static const auto* const layouts = new std::vector<Layout>{
      {DataFormat::kAuto,
       "auto",
       {{"messages", "prompt", "question", "problem"},
        {"answer", "reward_model.ground_truth", "solution", "ground_truth", "expected_answer"}}},
      {DataFormat::kPlain, "plain", {{"prompt"}, {"answer"}}},
      {DataFormat::kMessages, "messages", {{"messages"}, {"answer"}}},
      {DataFormat::kGsm8k, "gsm8k", {{"question"}, {"answer"}}},
      {DataFormat::kVerl, "verl", {{"prompt"}, {"reward_model.ground_truth"}}},
      {DataFormat::kTrl, "trl", {{"prompt"}, {"solution", "ground_truth", "answer"}}},
      {DataFormat::kPrimeRl, "prime_rl", {{"prompt", "question"}, {"answer"}}},
      {DataFormat::kOpenRlhf, "openrlhf", {{"input"}, {"label"}}},
      {DataFormat::kNemoRl, "nemo_rl", {{"messages", "input"}, {"output"}}},
      {DataFormat::kMath, "math", {{"problem"}, {"answer", "expected_answer", "solution"}}},
  };
  return *layouts;
}

bool HasName(const std::vector<std::string>& names, std::string_view name) {
  return std::ranges::find(names, name) != names.end();
}

}  // namespace

std::vector<std::pair<std::string, DataFormat>> DataFormatChoices() {
  std::vector<std::pair<std::string, DataFormat>> choices;
  for (const Layout& layout : Layouts()) choices.emplace_back(layout.name, layout.format);
  return choices;
}

std::string DataFormatName(DataFormat format) {
  return std::ranges::find(Layouts(), format, &Layout::format)->name;
}

const LayoutColumns& ColumnsOf(DataFormat format) {
  return std::ranges::find(Layouts(), format, &Layout::format)->columns;
}

const LayoutColumns& RecognisedColumns(const ordered_json& row) {
  static const auto* const input = new LayoutColumns{{"input"}, {"answer", "label", "output"}};
  const LayoutColumns& all = ColumnsOf(DataFormat::kAuto);
  const auto has = [&](const std::string& column) { return FindColumn(row, column) != nullptr; };
  return std::ranges::none_of(all.prompt, has) && has("input") ? *input : all;
}

std::string LayoutNameOf(std::string_view prompt_column, std::string_view answer_column) {
  for (const Layout& layout : Layouts()) {
    if (layout.format != DataFormat::kAuto && HasName(layout.columns.prompt, prompt_column) &&
        HasName(layout.columns.answer, answer_column)) {
      return layout.name;
    }
  }
  return prompt_column == "messages" && answer_column.empty() ? "messages" : "own columns";
}

const ordered_json* FindColumn(const ordered_json& row, std::string_view column) {
  if (!row.is_object()) return nullptr;
  const auto found = row.find(std::string(column));
  if (found != row.end()) return found->is_null() ? nullptr : &*found;
  for (size_t dot = column.find('.'); dot != std::string_view::npos;
       dot = column.find('.', dot + 1)) {
    const auto outer = row.find(std::string(column.substr(0, dot)));
    if (outer == row.end()) continue;
    if (const auto* const inner = FindColumn(*outer, column.substr(dot + 1))) return inner;
  }
  return nullptr;
}

std::string NoColumn(const ordered_json& row, std::string_view column) {
  std::vector<std::string> names, nested;
  for (const auto& [name, value] : row.items()) {
    names.push_back(name);
    if (!value.is_object()) continue;
    for (const auto& [member, ignored] : value.items()) {
      nested.push_back(absl::StrCat(name, ".", member));
    }
  }
  const bool is_null = row.find(std::string(column)) != row.end();
  if (is_null) return absl::StrCat("\"", std::string(column), "\" is null");
  std::vector<std::string> all = names;
  all.insert(all.end(), nested.begin(), nested.end());
  const std::string nearest = NearestIfClose(column, all);
  return absl::StrCat("no column \"", std::string(column), "\"; the columns are ",
                      absl::StrJoin(names, ", "),
                      nearest.empty() ? "" : absl::StrCat("; did you mean \"", nearest, "\"?"));
}

}  // namespace tandem::trainer
