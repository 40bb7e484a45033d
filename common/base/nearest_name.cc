#include "common/base/nearest_name.h"

#include <algorithm>
#include <functional>
#include <limits>
#include <numeric>

#include "common/base/dotted_name.h"

namespace tandem {
namespace {

size_t EditDistance(std::string_view a, std::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), size_t{0});
  for (size_t i = 0; i < a.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i + 1;
    for (size_t j = 0; j < b.size(); ++j) {
      const size_t substituted = diagonal + (a[i] == b[j] ? 0 : 1);
      diagonal = row[j + 1];
      row[j + 1] = std::min({substituted, row[j] + 1, row[j + 1] + 1});
    }
  }
  return row.back();
}

std::string NearestBy(const std::vector<std::string>& candidates,
                      const std::function<size_t(const std::string&)>& distance) {
  std::string nearest;
  size_t least = std::numeric_limits<size_t>::max();
  for (const std::string& candidate : candidates) {
    const size_t found = distance(candidate);
    if (found < least) {
      least = found;
      nearest = candidate;
    }
  }
  return nearest;
}

}  // namespace

std::string Nearest(std::string_view name, const std::vector<std::string>& candidates) {
  return NearestBy(candidates,
                   [name](const std::string& candidate) { return EditDistance(name, candidate); });
}

std::string NearestIfClose(std::string_view name, const std::vector<std::string>& candidates) {
  const std::string nearest = Nearest(name, candidates);
  return EditDistance(name, nearest) <= name.size() / 2 ? nearest : "";
}

std::string NearestDotted(std::string_view dotted, const std::vector<std::string>& candidates) {
  return NearestBy(candidates, [dotted](const std::string& candidate) {
    const size_t whole = EditDistance(dotted, candidate);
    const bool same_section = SectionOf(dotted) == SectionOf(candidate);
    const size_t last =
        EditDistance(LastPart(dotted), LastPart(candidate)) + (same_section ? 0 : 1);
    return std::min(whole, last);
  });
}

}  // namespace tandem
