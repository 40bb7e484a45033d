#include "trainer/weight_push/adapter_push.h"

#include <cmath>
#include <map>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/status_macros.h"

namespace tandem::trainer {
namespace {

constexpr double kTolerance = 1e-2;
constexpr size_t kNamed = 3;

}  // namespace

absl::Status CheckApplied(const AdapterPush& push, const std::vector<AppliedModule>& applied) {
  std::map<std::string, const LoraEffect*> effects;
  for (const AppliedModule& module : applied) effects[module.weight] = &module.effect;
  std::vector<std::string> problems;
  for (const AdapterPush::Module& module : push.modules) {
    const auto found = effects.find(module.weight);
    if (found == effects.end()) {
      problems.push_back(absl::StrCat(module.weight, " was not bound"));
      continue;
    }
    const double want = std::sqrt(module.squared_change);
    const double got = std::sqrt(found->second->squared_change);
    if (!(std::abs(got - want) <= kTolerance * want)) {
      problems.push_back(
          absl::StrCat(module.weight, " was changed by ", got, " and not by ", want));
    }
    effects.erase(found);
  }
  for (const auto& [weight, effect] : effects) {
    problems.push_back(absl::StrCat(weight, " was changed, and has no adapter"));
  }
  if (problems.empty()) return absl::OkStatus();
  const size_t count = problems.size();
  problems.resize(std::min(count, kNamed));
  return DataLoss("the adapter of ", push.modules.size(), " layers did not take effect in ", count,
                  ": ", absl::StrJoin(problems, "; "));
}

CastNumbers NumbersOf(const AdapterPush& push, const std::vector<AppliedModule>& applied) {
  LoraEffect sum;
  for (const AppliedModule& module : applied) sum += module.effect;
  CastNumbers numbers;
  numbers.changed_share = push.num_elements == 0 ? 0
                                                 : static_cast<double>(sum.changed) /
                                                       static_cast<double>(push.num_elements);
  numbers.lost_norm = std::sqrt(sum.squared_loss);
  numbers.arrived_share = sum.squared_change == 0 ? 1 : sum.arrived / sum.squared_change;
  return numbers;
}

}  // namespace tandem::trainer
