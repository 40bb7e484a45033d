#include "cli/run_file/yaml_changes.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "common/base/check.h"

namespace tandem::cli {
namespace {

constexpr size_t kIndent = 2;

struct Line {
  size_t depth = 0;
  std::string name, value;  // no value: a section
};

Line Read(const std::string& text) {
  Line line{.depth = std::min(text.find_first_not_of(' '), text.size()) / kIndent};
  const size_t colon = std::min(text.find(':'), text.size());
  line.name = text.substr(line.depth * kIndent, colon - line.depth * kIndent);
  if (colon + 2 < text.size()) line.value = text.substr(colon + 2);
  return line;
}

}  // namespace

std::vector<std::string> ChangedKnobs(const std::string& defaults, const std::string& resolved) {
  const std::vector<std::string> before = absl::StrSplit(defaults, '\n', absl::SkipEmpty());
  const std::vector<std::string> after = absl::StrSplit(resolved, '\n', absl::SkipEmpty());
  TANDEM_CHECK(before.size() == after.size());
  std::vector<std::string> changed, path;
  for (size_t i = 0; i < after.size(); ++i) {
    const Line was = Read(before[i]), is = Read(after[i]);
    path.resize(is.depth);
    path.push_back(is.name);
    if (was.value != is.value) {
      changed.push_back(
          absl::StrCat(absl::StrJoin(path, "."), ": ", is.value, "  (default ", was.value, ")"));
    }
  }
  return changed;
}

}  // namespace tandem::cli
