#include "common/options/options_text.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <functional>
#include <limits>
#include <set>

#include "absl/strings/ascii.h"
#include "absl/strings/str_replace.h"
#include "common/base/check.h"
#include "common/options/nearest_name.h"
#include "common/options/options.h"

namespace tandem {
namespace {

bool IsPlain(std::string_view text) {
  static const auto* const kReserved = new std::set<std::string_view>{
      "null", "Null", "NULL", "true", "True", "TRUE", "false", "False", "FALSE", "yes",
      "no",   "on",   "off",  "Yes",  "No",   "On",   "Off",   "y",     "n"};
  if (text.empty() || kReserved->contains(text)) return false;
  const auto is_word = [](char c) {
    return absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '_' || c == '/' || c == '.';
  };
  if (!absl::ascii_isalpha(static_cast<unsigned char>(text[0])) && text[0] != '/') return false;
  return std::all_of(text.begin(), text.end(), [&](char c) { return is_word(c) || c == '-'; });
}

}  // namespace

std::string NumberText(double number) {
  if (std::isinf(number)) return number > 0 ? ".inf" : "-.inf";
  std::array<char, 32> text;
  const auto result = std::to_chars(text.data(), text.data() + text.size(), number);
  return std::string(text.data(), result.ptr);
}

std::string QuotedText(std::string_view text) {
  if (IsPlain(text)) return std::string(text);
  std::string quoted = "\"";
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') {
      quoted += '\\';
      quoted += c;
    } else if (c == '\n') {
      quoted += "\\n";
    } else if (byte < 0x20 || byte == 0x7f) {
      char escape[8];
      std::snprintf(escape, sizeof(escape), "\\x%02x", byte);
      quoted += escape;
    } else {
      quoted += c;
    }
  }
  return quoted + "\"";
}

std::string RangeText(const NumberRange& range) {
  const bool has_min = range.min != -std::numeric_limits<double>::infinity();
  const bool has_max = range.max != std::numeric_limits<double>::infinity();
  if (!has_min && !has_max) return "";
  if (!has_max) return Concat(range.exclusive_min ? "> " : ">= ", NumberText(range.min));
  if (!has_min) return Concat(range.exclusive_max ? "< " : "<= ", NumberText(range.max));
  return Concat("in ", range.exclusive_min ? "(" : "[", NumberText(range.min), ", ",
                NumberText(range.max), range.exclusive_max ? ")" : "]");
}

std::string OptionBinder::ToYaml() const {
  std::string yaml;
  // A section's own options come before its subsections, both in the order in which they were
  // bound.
  const std::function<void(std::string_view, size_t)> print = [&](std::string_view section,
                                                                  size_t depth) {
    const std::string indent(2 * depth, ' ');
    for (const Option& option : options_) {
      if (SectionOf(option.name) != section) continue;
      yaml += Concat(indent, LastPart(option.name), ": ", option.print(), "\n");
    }
    for (const SectionHelp& child : sections_) {
      if (SectionOf(child.name) != section) continue;
      yaml += Concat(indent, LastPart(child.name), ":\n");
      print(child.name, depth + 1);
    }
  };
  print("", 0);
  return yaml;
}

std::vector<std::string> OptionBinder::ChangesFrom(const OptionBinder& defaults) const {
  TANDEM_CHECK(options_.size() == defaults.options_.size());
  std::vector<std::string> changes;
  for (size_t i = 0; i < options_.size(); ++i) {
    const std::string was = defaults.options_[i].print(), is = options_[i].print();
    if (is != was) changes.push_back(Concat(options_[i].name, ": ", is, "  (default ", was, ")"));
  }
  return changes;
}

std::string OptionBinder::Help() const {
  std::string help;
  for (const Option& option : options_) {
    help += Concat(option.name, "  ", option.type, "  = ", option.print());
    if (!option.range.empty()) help += Concat("  ", option.range);
    if (!option.unit.empty()) help += Concat("  [", option.unit, "]");
    help += Concat("  ", option.help, "\n");
  }
  return help;
}

std::string OptionBinder::Markdown() const {
  std::string page;
  const auto cell = [](std::string_view text) {
    return absl::StrReplaceAll(std::string(text), {{"|", "\\|"}, {"\n", " "}});
  };
  const auto table = [&](std::string_view section) {
    bool is_first = true;
    for (const Option& option : options_) {
      if (SectionOf(option.name) != section) continue;
      if (is_first) {
        page += Concat("| name | type | default | range | unit | meaning |\n",
                       "|---|---|---|---|---|---|\n");
      }
      is_first = false;
      page +=
          Concat("| `", option.name, "` | ", option.type, " | `", cell(option.print()), "` | ",
                 cell(option.range), " | ", cell(option.unit), " | ", cell(option.help), " |\n");
    }
    if (!is_first) page += Concat("\n");
  };
  table("");
  for (const SectionHelp& section : sections_) {
    page += Concat("## ", section.name, "\n\n", section.help, "\n\n");
    table(section.name);
  }
  return page;
}

}  // namespace tandem
