// The nearest name to a mistyped one, for error messages: knobs, choices, flags, commands. Pure.
//
// A name is near when it ends with the one that was written ("tokens" of --max-new-tokens, "steps"
// of trainer.steps), or when few letters differ: at most a third of the longer of the two, and one
// in any case; two letters that changed places count as one. Otherwise nothing is offered, because
// a far-fetched name sends the reader astray.
#ifndef TANDEM_COMMON_OPTIONS_NEAREST_NAME_H_
#define TANDEM_COMMON_OPTIONS_NEAREST_NAME_H_

#include <string>
#include <string_view>
#include <vector>

namespace tandem {

// The near candidate of least edit distance, the first of equals; before those, the shortest one
// that ends with `name` after '-', '.' or ' '. Leading dashes do not count. Empty when none is
// near.
std::string NearestIfClose(std::string_view name, const std::vector<std::string>& candidates);

// The same for dotted names: the right last part under another section is near too, above all where
// the outermost section is the right one.
std::string NearestDotted(std::string_view dotted, const std::vector<std::string>& candidates);

}  // namespace tandem

#endif  // TANDEM_COMMON_OPTIONS_NEAREST_NAME_H_
