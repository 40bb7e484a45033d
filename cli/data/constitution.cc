#include "cli/data/constitution.h"

#include <re2/re2.h>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/base/status_macros.h"

namespace tandem::cli {
namespace {

constexpr char kCritique[] =
    "Here is a request and a response to it.\n\nRequest: {prompt}\n\nResponse: {response}\n\n"
    "Criticise the response by this principle, in a few sentences: {principle}";
constexpr char kRevision[] =
    "Here is a request, a response to it and a critique of the response.\n\nRequest: {prompt}\n\n"
    "Response: {response}\n\nCritique: {critique}\n\nPrinciple: {principle}\n\n"
    "Rewrite the response so that the critique no longer holds. Write the new response alone.";

bool IsDivider(std::string_view line) {
  const absl::string_view stripped = absl::StripAsciiWhitespace({line.data(), line.size()});
  return stripped.size() >= 3 && stripped.find_first_not_of('-') == stripped.npos;
}

std::string Stripped(const std::string& text) {
  return std::string(absl::StripAsciiWhitespace(text));
}

absl::Status CheckPlace(const std::string& where, const char* what, const std::string& pattern,
                        const char* place) {
  if (absl::StrContains(pattern, place)) return absl::OkStatus();
  return InvalidArgument(where, ": the template of the ", what, " has no ", place);
}

}  // namespace

absl::StatusOr<Constitution> ParseConstitution(std::string_view text, const std::string& where) {
  std::vector<std::string> parts = {""};
  for (const absl::string_view line :
       absl::StrSplit(absl::string_view(text.data(), text.size()), '\n')) {
    if (IsDivider({line.data(), line.size()})) {
      parts.emplace_back();
    } else {
      absl::StrAppend(&parts.back(), line, "\n");
    }
  }
  if (parts.size() != 1 && parts.size() != 3) {
    return InvalidArgument(
        where, " has ", parts.size(),
        " parts between lines of dashes: want principles alone, or a template of "
        "the critique, one of the revision, and principles");
  }
  Constitution constitution = {.critique = kCritique, .revision = kRevision};
  if (parts.size() == 3) {
    constitution.critique = Stripped(parts[0]);
    constitution.revision = Stripped(parts[1]);
  }
  TANDEM_RETURN_IF_ERROR(CheckPlace(where, "critique", constitution.critique, "{response}"));
  TANDEM_RETURN_IF_ERROR(CheckPlace(where, "revision", constitution.revision, "{critique}"));
  for (const absl::string_view line : absl::StrSplit(parts.back(), '\n')) {
    const absl::string_view principle = absl::StripAsciiWhitespace(line);
    if (!principle.empty()) constitution.principles.emplace_back(principle);
  }
  if (constitution.principles.empty()) {
    return InvalidArgument(where, " has no principle: want one a line");
  }
  return constitution;
}

std::string FillTemplate(std::string_view pattern, const CritiqueTexts& texts) {
  static const RE2 kPlace(R"((\{(?:prompt|response|critique|principle)\}))");
  std::string filled;
  re2::StringPiece rest(pattern.data(), pattern.size());
  re2::StringPiece place;
  while (kPlace.Match(rest, 0, rest.size(), RE2::UNANCHORED, &place, 1)) {
    filled.append(rest.data(), place.data());
    std::string_view value = texts.principle;
    if (place == "{prompt}") value = texts.prompt;
    if (place == "{response}") value = texts.response;
    if (place == "{critique}") value = texts.critique;
    filled.append(value);
    rest.remove_prefix(static_cast<size_t>(place.data() - rest.data()) + place.size());
  }
  filled.append(rest.data(), rest.size());
  return filled;
}

absl::StatusOr<std::string> ParseRevision(std::string_view reply) {
  static const RE2 kHead(R"((?mi)^[ \t*#]*(?:revision|revised response)[ \t*]*:[ \t*]*)");
  re2::StringPiece rest(reply.data(), reply.size());
  re2::StringPiece head;
  while (kHead.Match(rest, 0, rest.size(), RE2::UNANCHORED, &head, 1)) {
    rest.remove_prefix(static_cast<size_t>(head.data() - rest.data()) + head.size());
  }
  std::string revision(absl::StripAsciiWhitespace({rest.data(), rest.size()}));
  if (!revision.empty()) return revision;
  return absl::InvalidArgumentError("the reply has no revision");
}

}  // namespace tandem::cli
