#include "common/options/nearest_name.h"

#include <algorithm>
#include <functional>
#include <limits>
#include <numeric>

namespace tandem {
namespace {

constexpr size_t kFar = std::numeric_limits<size_t>::max();

// Optimal string alignment distance: letters added, removed or replaced, and adjacent letters
// swapped.
size_t EditDistance(std::string_view a, std::string_view b) {
  std::vector<size_t> two_before, before(b.size() + 1), row(b.size() + 1);
  std::iota(row.begin(), row.end(), size_t{0});
  for (size_t i = 0; i < a.size(); ++i) {
    two_before = before;
    before = row;
    row[0] = i + 1;
    for (size_t j = 0; j < b.size(); ++j) {
      row[j + 1] = std::min({before[j] + (a[i] == b[j] ? 0 : 1), row[j] + 1, before[j + 1] + 1});
      if (i > 0 && j > 0 && a[i] == b[j - 1] && a[i - 1] == b[j]) {
        row[j + 1] = std::min(row[j + 1], two_before[j - 1] + 1);
      }
    }
  }
  return row.back();
}

// kFar if too many letters differ for one name to be a misspelling of the other.
size_t DistanceIfClose(std::string_view a, std::string_view b) {
  const size_t distance = EditDistance(a, b);
  return distance <= std::max<size_t>(1, std::max(a.size(), b.size()) / 3) ? distance : kFar;
}

std::string_view WithoutDashes(std::string_view name) {
  name.remove_prefix(std::min(name.find_first_not_of('-'), name.size()));
  return name;
}

bool EndsWithPart(std::string_view candidate, std::string_view name) {
  if (name.empty() || candidate.size() <= name.size() || !candidate.ends_with(name)) return false;
  const char before = candidate[candidate.size() - name.size() - 1];
  return before == '-' || before == '.' || before == ' ';
}

// The candidate with the least distance (the first of equals); empty if all are far.
std::string NearestBy(const std::vector<std::string>& candidates,
                      const std::function<size_t(const std::string&)>& distance) {
  std::string nearest;
  size_t least = kFar;
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

std::string NearestIfClose(std::string_view name, const std::vector<std::string>& candidates) {
  const std::string_view bare = WithoutDashes(name);
  const std::string ending = NearestBy(candidates, [bare](const std::string& candidate) {
    return EndsWithPart(candidate, bare) ? candidate.size() : kFar;
  });
  if (!ending.empty()) return ending;
  return NearestBy(candidates, [bare](const std::string& candidate) {
    return DistanceIfClose(bare, WithoutDashes(candidate));
  });
}

std::string NearestDotted(std::string_view dotted, const std::vector<std::string>& candidates) {
  const auto outermost = [](std::string_view name) { return name.substr(0, name.find('.')); };
  const std::string_view last = LastPart(dotted);
  const std::string same_ending = NearestBy(candidates, [&](const std::string& candidate) {
    if (EndsWithPart(candidate, dotted)) return candidate.size();
    if (LastPart(candidate) != last) return kFar;
    // Ranks these after all candidates that end with the whole name, and prefers the same outermost
    // section.
    const bool same = outermost(candidate) == outermost(dotted);
    return (same ? size_t{1} : size_t{2}) * 1000 + EditDistance(dotted, candidate);
  });
  if (!same_ending.empty()) return same_ending;
  return NearestBy(candidates, [&](const std::string& candidate) {
    const size_t whole = DistanceIfClose(dotted, candidate);
    if (SectionOf(dotted) != SectionOf(candidate)) return whole;
    return std::min(whole, DistanceIfClose(last, LastPart(candidate)));
  });
}

}  // namespace tandem
