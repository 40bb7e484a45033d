#include "drift_lab/referee/glance_order.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <string>

namespace tandem::drift {
namespace {

// Another strength of a cause that does so well comes before other causes.
constexpr double kPromising = 0.5;

}  // namespace

GlanceOrder::GlanceOrder(std::span<const Suspect> suspects) {
  std::map<std::string, size_t> places;
  for (const Suspect& suspect : suspects) {
    const bool alone = suspect.rounds || suspect.cause == "prompt";
    const auto [place, is_first] =
        places.try_emplace(alone ? suspect.text : suspect.cause, families_.size());
    if (is_first) families_.emplace_back();
    families_[place->second].members.push_back(&suspect);
  }
}

const Suspect* GlanceOrder::Next() {
  const auto rank = [](const Family& family) {
    if (!family.has_more()) return -1.0;
    if (family.well > kPromising) return 2 + family.well;
    return family.next == 0 ? 2.0 : family.well;
  };
  const auto best = std::ranges::max_element(families_, {}, rank);  // the first of equals
  if (best == families_.end() || !best->has_more()) return nullptr;
  last_ = static_cast<size_t>(best - families_.begin());
  return best->members[best->next++];
}

void GlanceOrder::Report(double well) {
  if (!std::isnan(well)) families_[last_].well = std::max(families_[last_].well, well);
}

size_t GlanceOrder::num_left() const {
  size_t left = 0;
  for (const Family& family : families_) left += family.members.size() - family.next;
  return left;
}

}  // namespace tandem::drift
