#include "common/options/options.h"

#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/check.h"
#include "common/base/status_macros.h"
#include "common/files/file_system.h"
#include "common/options/nearest_name.h"
#include "common/options/options_text.h"

namespace tandem {
namespace {

bool IsInRange(double number, const NumberRange& range) {
  if (range.exclusive_max ? number >= range.max : number > range.max) return false;
  return range.exclusive_min ? number > range.min : number >= range.min;
}

absl::Status OutsideRange(std::string_view scalar, const NumberRange& range) {
  return InvalidArgument(scalar, " is out of range: must be ", RangeText(range));
}

absl::Status WrongType(std::string_view scalar, std::string_view expected) {
  return InvalidArgument("'", scalar, "' is not ", expected);
}

template <typename Number>
bool ParseWhole(std::string_view text, Number* number) {
  if (text.starts_with('+')) text.remove_prefix(1);
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), *number);
  return error == std::errc() && end == text.data() + text.size();
}

// Accepts YAML's spellings of infinity and no others, since from_chars would accept "nan" and "inf"
// too.
bool ParseNumber(std::string_view text, double* number) {
  if (text == ".inf" || text == "+.inf") {
    *number = std::numeric_limits<double>::infinity();
    return true;
  }
  if (text == "-.inf") {
    *number = -std::numeric_limits<double>::infinity();
    return true;
  }
  return ParseWhole(text, number) && std::isfinite(*number);
}

}  // namespace

void OptionBinder::Add(Option option) {
  TANDEM_CHECK(!option.name.empty());
  TANDEM_CHECK(Find(option.name) == nullptr);
  TANDEM_CHECK(!IsSection(option.name));
  options_.push_back(std::move(option));
}

void OptionBinder::Flag(std::string_view name, bool* field, std::string_view help) {
  Option option{.name = Concat(prefix_, name), .type = "flag", .help = std::string(help)};
  option.parse = [field](const std::string& scalar) {
    if (scalar != "true" && scalar != "false") return WrongType(scalar, "true or false");
    *field = scalar == "true";
    return absl::OkStatus();
  };
  option.print = [field] { return std::string(*field ? "true" : "false"); };
  Add(std::move(option));
}

void OptionBinder::Integer(std::string_view name, int64_t* field, NumberRange range,
                           std::string_view unit, std::string_view help) {
  Option option{.name = Concat(prefix_, name),
                .type = "integer",
                .range = RangeText(range),
                .unit = std::string(unit),
                .help = std::string(help)};
  option.parse = [field, range](const std::string& scalar) {
    int64_t number = 0;
    if (!ParseWhole(scalar, &number)) return WrongType(scalar, "an integer");
    if (!IsInRange(static_cast<double>(number), range)) return OutsideRange(scalar, range);
    *field = number;
    return absl::OkStatus();
  };
  option.print = [field] { return std::to_string(*field); };
  Add(std::move(option));
}

void OptionBinder::Number(std::string_view name, double* field, NumberRange range,
                          std::string_view unit, std::string_view help) {
  Option option{.name = Concat(prefix_, name),
                .type = "number",
                .range = RangeText(range),
                .unit = std::string(unit),
                .help = std::string(help)};
  option.parse = [field, range](const std::string& scalar) {
    double number = 0;
    if (!ParseNumber(scalar, &number)) return WrongType(scalar, "a number");
    if (!IsInRange(number, range)) return OutsideRange(scalar, range);
    *field = number;
    return absl::OkStatus();
  };
  option.print = [field] { return NumberText(*field); };
  Add(std::move(option));
}

void OptionBinder::Text(std::string_view name, std::string* field, std::string_view help) {
  Option option{.name = Concat(prefix_, name), .type = "text", .help = std::string(help)};
  option.parse = [field](const std::string& scalar) {
    *field = scalar;
    return absl::OkStatus();
  };
  option.print = [field] { return QuotedText(*field); };
  Add(std::move(option));
}

void OptionBinder::TextList(std::string_view name, std::vector<std::string>* field,
                            std::string_view help) {
  Option option{.name = Concat(prefix_, name), .type = "list of texts", .help = std::string(help)};
  option.parse_list = [field](const std::vector<std::string>& items) {
    *field = items;
    return absl::OkStatus();
  };
  option.print = [field] {
    std::vector<std::string> items;
    for (const std::string& item : *field) items.push_back(QuotedText(item));
    return Concat("[", absl::StrJoin(items, ", "), "]");
  };
  Add(std::move(option));
}

void OptionBinder::NumberMap(std::string_view name,
                             std::vector<std::pair<std::string, double>>* field,
                             std::string_view help) {
  Option option{
      .name = Concat(prefix_, name), .type = "mapping to numbers", .help = std::string(help)};
  option.parse_map = [field](const std::vector<std::pair<std::string, std::string>>& entries) {
    std::vector<std::pair<std::string, double>> numbers;
    for (const auto& [key, scalar] : entries) {
      double number = 0;
      if (!ParseNumber(scalar, &number)) {
        return InvalidArgument("'", scalar, "' of '", key, "' is not a number");
      }
      numbers.emplace_back(key, number);
    }
    *field = std::move(numbers);
    return absl::OkStatus();
  };
  option.print = [field] {
    std::vector<std::string> entries;
    for (const auto& [key, number] : *field) {
      entries.push_back(Concat(QuotedText(key), ": ", NumberText(number)));
    }
    return Concat("{", absl::StrJoin(entries, ", "), "}");
  };
  Add(std::move(option));
}

void OptionBinder::TextMap(std::string_view name,
                           std::vector<std::pair<std::string, std::string>>* field,
                           std::string_view help) {
  Option option{
      .name = Concat(prefix_, name), .type = "mapping to texts", .help = std::string(help)};
  option.parse_map = [field](const std::vector<std::pair<std::string, std::string>>& entries) {
    *field = entries;
    return absl::OkStatus();
  };
  option.print = [field] {
    std::vector<std::string> entries;
    for (const auto& [key, text] : *field) {
      entries.push_back(Concat(QuotedText(key), ": ", QuotedText(text)));
    }
    return Concat("{", absl::StrJoin(entries, ", "), "}");
  };
  Add(std::move(option));
}

void OptionBinder::ChoiceByIndex(std::string_view name, std::vector<std::string> spellings,
                                 std::function<size_t()> get, std::function<void(size_t)> set,
                                 std::string_view help) {
  TANDEM_CHECK(!spellings.empty());
  Option option{.name = Concat(prefix_, name),
                .type = "choice",
                .range = absl::StrJoin(spellings, " | "),
                .help = std::string(help)};
  option.parse = [spellings, set](const std::string& scalar) {
    const auto found = std::find(spellings.begin(), spellings.end(), scalar);
    if (found == spellings.end()) {
      const std::string nearest = NearestIfClose(scalar, spellings);
      return InvalidArgument("'", scalar, "' is not one of ", absl::StrJoin(spellings, ", "),
                             nearest.empty() ? "" : Concat("; the nearest is '", nearest, "'"));
    }
    set(static_cast<size_t>(found - spellings.begin()));
    return absl::OkStatus();
  };
  option.print = [spellings, get] {
    const size_t index = get();
    TANDEM_CHECK(index < spellings.size());
    return spellings[index];
  };
  Add(std::move(option));
}

void OptionBinder::Section(std::string_view name, std::string_view help,
                           const std::function<void(OptionBinder&)>& bind) {
  const std::string outer = prefix_;
  const std::string dotted = Concat(prefix_, name);
  TANDEM_CHECK(Find(dotted) == nullptr);
  if (!IsSection(dotted)) sections_.push_back({dotted, std::string(help)});
  prefix_ = Concat(dotted, ".");
  bind(*this);
  prefix_ = outer;
}

std::vector<OptionBinder::OptionText> OptionBinder::Texts() const {
  std::vector<OptionText> texts;
  for (const Option& option : options_) {
    texts.push_back(
        {option.name, option.print(), option.type, option.range, option.unit, option.help});
  }
  return texts;
}

void OptionBinder::Ignore(std::string_view name) { ignored_.push_back(Concat(prefix_, name)); }

const OptionBinder::Option* OptionBinder::Find(std::string_view dotted) const {
  for (const Option& option : options_) {
    if (option.name == dotted) return &option;
  }
  return nullptr;
}

bool OptionBinder::IsSection(std::string_view dotted) const {
  return std::any_of(sections_.begin(), sections_.end(),
                     [dotted](const SectionHelp& section) { return section.name == dotted; });
}

bool OptionBinder::IsIgnored(std::string_view dotted) const {
  return std::any_of(ignored_.begin(), ignored_.end(), [dotted](const std::string& name) {
    return dotted == name || dotted.starts_with(Concat(name, "."));
  });
}

std::string OptionBinder::NearestName(std::string_view dotted) const {
  std::vector<std::string> names;
  for (const Option& option : options_) names.push_back(option.name);
  for (const SectionHelp& section : sections_) names.push_back(section.name);
  for (const std::string& name : ignored_) names.push_back(name);
  return NearestDotted(dotted, names);
}

absl::Status OptionBinder::UnknownKey(std::string_view dotted) const {
  const std::string nearest = NearestName(dotted);
  return InvalidArgument("unknown key '", dotted, "'; ",
                         nearest.empty() ? "no valid name is near: --help-config lists them all"
                                         : Concat("the nearest valid name is '", nearest, "'"));
}

struct OptionBinder::Reader {
  const OptionBinder& binder;
  const std::string origin;

  absl::Status At(const YAML::Mark& mark, const absl::Status& status) const {
    if (status.ok()) return status;
    const std::string line = mark.is_null() ? "" : Concat(":", std::to_string(mark.line + 1));
    return InvalidArgument(origin, line, ": ", status.message());
  }

  template <typename... Parts>
  absl::Status Fail(const YAML::Node& node, const Parts&... message) const {
    return At(node.Mark(), InvalidArgument(message...));
  }

  absl::Status ReadMapping(const YAML::Node& node, const std::string& prefix) const {
    std::set<std::string> seen;
    for (const auto& entry : node) {
      if (!entry.first.IsScalar()) return Fail(entry.first, "a key must be a plain name");
      const std::string dotted = Concat(prefix, entry.first.Scalar());
      if (!seen.insert(dotted).second) {
        return Fail(entry.first, "'", dotted, "' is given twice");
      }
      if (binder.IsSection(dotted)) {
        TANDEM_RETURN_IF_ERROR(ReadSection(entry.second, dotted));
      } else if (const Option* option = binder.Find(dotted)) {
        TANDEM_RETURN_IF_ERROR(ReadOption(entry.second, *option));
      } else if (!binder.IsIgnored(dotted)) {
        return At(entry.first.Mark(), binder.UnknownKey(dotted));
      }
    }
    return absl::OkStatus();
  }

  absl::Status ReadSection(const YAML::Node& node, const std::string& dotted) const {
    if (node.IsNull()) return absl::OkStatus();
    if (!node.IsMap()) {
      return Fail(node, "'", dotted, "' is a section: expected 'name: value' lines");
    }
    return ReadMapping(node, Concat(dotted, "."));
  }

  absl::Status ReadOption(const YAML::Node& node, const Option& option) const {
    if (option.parse_list) return ReadList(node, option);
    if (option.parse_map) return ReadMap(node, option);
    if (!node.IsScalar()) {
      return Fail(node, option.name, ": expected one ", option.type,
                  node.IsNull() ? ", found nothing" : "");
    }
    if (option.type != "text" && option.type != "choice" && node.Tag() == "!") {
      return Fail(node, option.name, ": expected ", option.type == "integer" ? "an " : "a ",
                  option.type, ", found a text in quotes");
    }
    return At(node.Mark(), Named(option, option.parse(node.Scalar())));
  }

  absl::Status ReadList(const YAML::Node& node, const Option& option) const {
    if (!node.IsSequence()) return Fail(node, option.name, ": expected a list, [a, b]");
    std::vector<std::string> items;
    for (const auto& item : node) {
      if (!item.IsScalar()) return Fail(item, option.name, ": items are plain texts");
      items.push_back(item.Scalar());
    }
    return At(node.Mark(), Named(option, option.parse_list(items)));
  }

  absl::Status ReadMap(const YAML::Node& node, const Option& option) const {
    const char* const value = option.type == "mapping to texts" ? "text" : "number";
    if (!node.IsMap()) {
      return Fail(node, option.name, ": expected a mapping, {name: ", value, "}");
    }
    std::set<std::string> seen;
    std::vector<std::pair<std::string, std::string>> entries;
    for (const auto& entry : node) {
      if (!entry.first.IsScalar() || !entry.second.IsScalar()) {
        return Fail(entry.first, option.name, ": entries are 'name: ", value, "'");
      }
      if (!seen.insert(entry.first.Scalar()).second) {
        return Fail(entry.first, "'", option.name, ".", entry.first.Scalar(), "' is given twice");
      }
      entries.emplace_back(entry.first.Scalar(), entry.second.Scalar());
    }
    return At(node.Mark(), Named(option, option.parse_map(entries)));
  }

  static absl::Status Named(const Option& option, const absl::Status& status) {
    if (status.ok()) return status;
    return InvalidArgument(option.name, ": ", status.message());
  }
};

absl::StatusOr<std::string> ReadOptionFile(const std::string& path) {
  absl::StatusOr<std::string> yaml = ReadFile(path);
  if (yaml.ok()) return yaml;
  return absl::Status(yaml.status().code(),
                      absl::StrCat(yaml.status().message(),
                                   "; it should be a YAML file of options: examples/ has some, and "
                                   "docs/configuration.md lists all"));
}

absl::Status OptionBinder::LoadFile(const std::string& path) {
  TANDEM_ASSIGN_OR_RETURN(const std::string yaml, ReadOptionFile(path));
  return LoadString(yaml, path);
}

absl::Status OptionBinder::LoadString(const std::string& yaml, std::string_view origin) {
  const Reader reader{*this, std::string(origin)};
  try {
    const std::vector<YAML::Node> documents = YAML::LoadAll(yaml);
    if (documents.empty()) return absl::OkStatus();
    if (documents.size() > 1) {
      return reader.Fail(documents[1], "a second YAML document; a configuration is one");
    }
    if (documents[0].IsNull()) return absl::OkStatus();
    if (!documents[0].IsMap()) {
      return reader.Fail(documents[0], "expected 'name: value' lines at the top");
    }
    return reader.ReadMapping(documents[0], "");
  } catch (const YAML::Exception& error) {
    return reader.At(error.mark, InvalidArgument("syntax: ", error.msg));
  }
}

absl::Status OptionBinder::Set(std::string_view assignment) {
  const Reader reader{*this, Concat("--set ", assignment)};
  const auto fail = [&](const absl::Status& status) {
    return reader.At(YAML::Mark::null_mark(), status);
  };
  const size_t equals = assignment.find('=');
  if (equals == std::string_view::npos || equals == 0) {
    return fail(InvalidArgument("expected name=value"));
  }
  const std::string dotted(assignment.substr(0, equals));
  const std::string value(assignment.substr(equals + 1));
  const Option* option = Find(dotted);
  if (option == nullptr) {
    if (IsIgnored(dotted)) return absl::OkStatus();
    if (IsSection(dotted)) {
      return fail(InvalidArgument("'", dotted, "' is a section: name one option of it"));
    }
    return fail(UnknownKey(dotted));
  }
  if (option->parse) return fail(Reader::Named(*option, option->parse(value)));
  try {
    return reader.ReadOption(YAML::Load(value), *option);
  } catch (const YAML::Exception& error) {
    return fail(InvalidArgument("syntax: ", error.msg));
  }
}

}  // namespace tandem
