#include "trainer/drift/recent_weights.h"

#include "common/base/status_macros.h"

namespace tandem::trainer {

bool RecentWeights::MayBeNeeded(int64_t version) const {
  for (int64_t step = version + 1; step <= version + 1 + reach_; ++step) {
    if (needs_(step, version)) return true;
  }
  return false;
}

absl::Status RecentWeights::Remember(WeightVersion version, const std::string& rounding,
                                     const Keep& keep) {
  std::erase_if(versions_, [&](const auto& kept) { return kept.first < version.value - reach_; });
  RecentVersion& kept = versions_[version.value] = {.rounding = rounding};
  if (!MayBeNeeded(version.value)) return absl::OkStatus();
  TANDEM_ASSIGN_OR_RETURN(kept.masters, keep());
  return absl::OkStatus();
}

void RecentWeights::NoteServed(WeightVersion version, const DigestMap& served) {
  versions_[version.value].served = served;
}

const RecentVersion* RecentWeights::Find(int64_t version) const {
  const auto found = versions_.find(version);
  return found == versions_.end() ? nullptr : &found->second;
}

}  // namespace tandem::trainer
