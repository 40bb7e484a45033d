// Names of options: the parts of a dotted name ("trainer.push.rounding" is option "rounding" of
// section "trainer.push"), and the nearest valid name to a mistyped one, for error messages about
// options, choices, flags and commands. Pure.
//
// A candidate is near if it ends with the given name ("tokens" for --max-new-tokens, "steps" for
// trainer.steps), or if few letters differ: at most a third of the longer name, but at least one;
// two swapped letters count as one. Otherwise nothing is suggested, because a wrong suggestion
// misleads the reader.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace tandem {

// The part after the last dot; the whole name if it has none.
inline std::string_view LastPart(std::string_view dotted) {
  return dotted.substr(dotted.rfind('.') + 1);  // npos + 1 is 0
}

// The part before the last dot; empty if the name has none.
inline std::string_view SectionOf(std::string_view dotted) {
  const size_t dot = dotted.rfind('.');
  return dot == std::string_view::npos ? std::string_view() : dotted.substr(0, dot);
}

// Returns the shortest candidate that ends with `name` after '-', '.' or ' ', else the near
// candidate with the least edit distance (the first of equals). Leading dashes are ignored. Empty
// if none is near.
std::string NearestIfClose(std::string_view name, const std::vector<std::string>& candidates);

// The same for dotted names. A candidate with the same last part in another section is near too,
// preferably in the same outermost section.
std::string NearestDotted(std::string_view dotted, const std::vector<std::string>& candidates);

}  // namespace tandem
