// Constitution: the principles by which a model criticises and revises its own responses
// (Constitutional AI, Bai et al. 2022, arXiv 2212.08073, section 3.1), and the texts that ask it
// to. Pure.
//
// A file has two templates and the principles, in parts that a line of three or more dashes
// separates. Places are filled in once, as those of a judge's rubric (judge_text.h):
//
//   {prompt} ... {response} ... {principle}              asks for a critique
//   ---
//   {prompt} ... {response} ... {critique} ... {principle}  asks for a revision
//   ---
//   a principle a line
//
// A file without such a line is principles alone; the templates are then those below.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace tandem::cli {

struct Constitution {
  std::string critique, revision;  // templates
  std::vector<std::string> principles;
};

// `where` opens the messages.
//   INVALID_ARGUMENT  another number of parts than 1 or 3; no principle; a template without
//                     {response} (critique) or {critique} (revision)
absl::StatusOr<Constitution> ParseConstitution(std::string_view text, const std::string& where);

// What a template says of a response. `critique` is empty in a request for one.
struct CritiqueTexts {
  std::string_view prompt, response, critique, principle;
};
std::string FillTemplate(std::string_view pattern, const CritiqueTexts& texts);

// The revised response of a reply: the text after the last line that is "Revision:" or starts with
// it; without one, all of it. Outer white space is cut off.
//   INVALID_ARGUMENT  nothing is left
absl::StatusOr<std::string> ParseRevision(std::string_view reply);

}  // namespace tandem::cli
