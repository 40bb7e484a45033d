#include "trainer/recent_weights.h"

#include <cstddef>
#include <memory>

namespace tandem::trainer {
namespace {

HostTensor CopyOf(const HostTensor& tensor) {
  auto bytes = std::make_shared<std::vector<std::byte>>(tensor.bytes.begin(), tensor.bytes.end());
  return {tensor.spec, *bytes, bytes};
}

}  // namespace

bool RecentWeights::MayBeNeeded(int64_t version) const {
  for (int64_t step = version + 1; step <= version + 1 + reach_; ++step) {
    if (needs_(step, version)) return true;
  }
  return false;
}

void RecentWeights::Remember(WeightVersion version, const std::vector<HostTensor>& masters,
                             const std::string& rounding) {
  std::erase_if(versions_, [&](const auto& kept) { return kept.first < version.value - reach_; });
  RecentVersion& kept = versions_[version.value] = {.rounding = rounding};
  if (!MayBeNeeded(version.value)) return;
  for (const HostTensor& tensor : masters) kept.masters.push_back(CopyOf(tensor));
}

void RecentWeights::NoteServed(WeightVersion version, const DigestMap& served) {
  versions_[version.value].served = served;
}

const RecentVersion* RecentWeights::Find(int64_t version) const {
  const auto found = versions_.find(version);
  return found == versions_.end() ? nullptr : &found->second;
}

}  // namespace tandem::trainer
