// Any bytes as a row of prompts, read by its columns, by a layout and through a template: refused, or
// a prompt whose messages and tools are JSON.
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string_view>
#include <vector>

#include "common/base/check.h"
#include "trainer/data/row_parser.h"

namespace {

using tandem::trainer::DataFormat;
using tandem::trainer::RowParser;

std::vector<RowParser> Parsers() {
  std::vector<RowParser> parsers;
  parsers.push_back(*RowParser::Create({}));
  parsers.push_back(*RowParser::Create({.format = DataFormat::kVerl, .system_prompt = "s"}));
  parsers.push_back(*RowParser::Create(
      {.columns = {{"prompt", "a.b"}, {"answer", ""}, {"tools", "t"}}, .suffix = "x"}));
  parsers.push_back(*RowParser::Create({.text_template = "{a} {b.c}"}, /*needs_answer=*/false));
  return parsers;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const auto* const parsers = new std::vector<RowParser>(Parsers());
  const std::string_view row(reinterpret_cast<const char*>(data), size);
  for (const RowParser& parser : *parsers) {
    const auto parsed = parser.Parse(row, "x:1");
    if (!parsed.ok()) continue;
    TANDEM_CHECK(parsed->text.empty() != parsed->messages_json.empty());
    TANDEM_CHECK(parsed->messages_json.empty() || nlohmann::json::accept(parsed->messages_json));
    TANDEM_CHECK(parsed->tools_json.empty() || nlohmann::json::accept(parsed->tools_json));
  }
  return 0;
}
