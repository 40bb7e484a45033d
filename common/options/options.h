// OptionBinder: binds every option, a field with its default in the Options struct of a component,
// to a dotted name, a unit and a help line, in one place. The binder reads YAML and `a.b=c`
// overrides into the fields, and prints the resolved configuration and the help.
//
//   struct CorrectionOptions { double max_weight = 2.0; };
//   void BindOptions(OptionBinder& b, CorrectionOptions& o) {
//     b.Number("max_weight", &o.max_weight, {.min = 1}, "", "ceiling on one token's weight");
//   }
//   OptionBinder b;
//   b.Section("correction", "stage 6", o);
//
// Binding a name twice is a TANDEM_CHECK. Thread-compatible; fields must outlive the binder.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace tandem {

struct NumberRange {
  double min = -std::numeric_limits<double>::infinity();
  double max = std::numeric_limits<double>::infinity();
  bool exclusive_min = false;  // value > min instead of >=
  bool exclusive_max = false;  // value < max instead of <=
};

class OptionBinder {
 public:
  void Flag(std::string_view name, bool* field, std::string_view help);
  void Integer(std::string_view name, int64_t* field, NumberRange range, std::string_view unit,
               std::string_view help);
  void Number(std::string_view name, double* field, NumberRange range, std::string_view unit,
              std::string_view help);
  void Text(std::string_view name, std::string* field, std::string_view help);
  void TextList(std::string_view name, std::vector<std::string>* field, std::string_view help);
  void NumberMap(std::string_view name, std::vector<std::pair<std::string, double>>* field,
                 std::string_view help);  // YAML mapping name: number, order kept
  void TextMap(std::string_view name, std::vector<std::pair<std::string, std::string>>* field,
               std::string_view help);  // YAML mapping name: text, order kept

  // An enum with its spellings, in the order of the help: {{"off", Kind::kOff}, {"token_tis",
  // Kind::kTokenTis}}.
  template <typename Enum>
  void Choice(std::string_view name, Enum* field, std::vector<std::pair<std::string, Enum>> choices,
              std::string_view help) {
    std::vector<std::string> names;
    for (const auto& [spelling, value] : choices) names.push_back(spelling);
    ChoiceByIndex(
        name, std::move(names),
        [field, choices] {
          size_t i = 0;
          while (i < choices.size() && choices[i].second != *field) ++i;
          return i;
        },
        [field, choices](size_t i) { *field = choices[i].second; }, help);
  }

  // Binds everything that `bind` adds below "name.".
  void Section(std::string_view name, std::string_view help,
               const std::function<void(OptionBinder&)>& bind);
  // Binds what the BindOptions of an Options struct adds.
  template <typename Options>
  void Section(std::string_view name, std::string_view help, Options& options) {
    Section(name, help, [&options](OptionBinder& binder) { BindOptions(binder, options); });
  }

  // Accepts and ignores a top-level section that another process reads.
  void Ignore(std::string_view name);

  // Reads a YAML file into the fields. After an error, the values of the fields are unspecified.
  //   NOT_FOUND         no such file
  //   INVALID_ARGUMENT  "FILE:LINE: ...": a syntax error; an unknown key, with the nearest valid
  //                     name; a repeated key; a wrong type; a value out of range, with the range
  absl::Status LoadFile(const std::string& path);
  absl::Status LoadString(const std::string& yaml, std::string_view origin);

  // Applies an override such as "correction.max_weight=3". Errors are those of LoadFile, with
  // "--set" as the place.
  absl::Status Set(std::string_view assignment);

  // The resolved configuration. LoadString reads it back to the same values.
  std::string ToYaml() const;

  // "trainer.steps: 3  (default 100)" for every option whose value differs from that of `defaults`,
  // which has the same bindings.
  std::vector<std::string> ChangesFrom(const OptionBinder& defaults) const;

  // What a program that offers options as flags needs of each, in the order of binding. `value` is
  // the current one.
  struct OptionText {
    std::string name, value, type, range, unit, help;
  };
  std::vector<OptionText> Texts() const;

  // One line per option: name, type, default (the current value), range, unit, help.
  std::string Help() const;

  // The same as one Markdown table per section (docs/configuration.md).
  std::string Markdown() const;

 private:
  struct Reader;  // walks a YAML document
  struct Option {
    std::string name;  // dotted
    std::string type, range, unit, help;
    std::function<absl::Status(const std::string& scalar)> parse;  // null for lists and maps
    std::function<absl::Status(const std::vector<std::string>&)> parse_list;
    std::function<absl::Status(const std::vector<std::pair<std::string, std::string>>&)> parse_map;
    std::function<std::string()> print;  // as a YAML value on one line
  };
  struct SectionHelp {
    std::string name, help;
  };

  void ChoiceByIndex(std::string_view name, std::vector<std::string> spellings,
                     std::function<size_t()> get, std::function<void(size_t)> set,
                     std::string_view help);
  void Add(Option option);
  const Option* Find(std::string_view dotted) const;
  bool IsSection(std::string_view dotted) const;
  bool IsIgnored(std::string_view dotted) const;
  std::string NearestName(std::string_view dotted) const;  // among all options and sections
  absl::Status UnknownKey(std::string_view dotted) const;

  std::string prefix_;
  std::vector<Option> options_;
  std::vector<SectionHelp> sections_;
  std::vector<std::string> ignored_;
};

// The text of a file of options, not yet parsed.
//   any error of ReadFile, with a hint at what such a file looks like
absl::StatusOr<std::string> ReadOptionFile(const std::string& path);

}  // namespace tandem
