// RecentWeights: the masters of recent versions, so that tokens can be scored again at the version
// that drew them: for captures, for the additive split. Used by trainer.cc, from its thread.
//
// Memory: a copy of the masters (4 bytes a parameter, shared out over the ranks) for each version
// that something coming may need.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/weight_version.h"
#include "common/weights/digest.h"
#include "trainer/ranks/kept_masters.h"

namespace tandem::trainer {

struct RecentVersion {
  std::string rounding;  // of the cast servers got: "nearest", "dither"; "none" in fp32
  DigestMap served;      // what they were proven to run; empty: not yet
  std::optional<KeptMasters> masters;  // none: not kept
};

class RecentWeights {
 public:
  // `reach`: how many versions before the one a step starts from may be asked for. `needs(step,
  // version)`: will train step `step`, which starts from version step - 1, ask for the masters of
  // `version`?
  using Needs = std::function<bool(int64_t step, int64_t version)>;
  RecentWeights(int64_t reach, Needs needs) : reach_(reach), needs_(std::move(needs)) {}

  // Keeps the masters of `version` if a coming step needs them, and forgets those that none will.
  // Call with every version, before it is trained any further. Errors of `keep`.
  using Keep = std::function<absl::StatusOr<KeptMasters>()>;
  absl::Status Remember(WeightVersion version, const std::string& rounding, const Keep& keep);

  // Records the digests that servers were proven to run as `version`.
  void NoteServed(WeightVersion version, const DigestMap& served);

  const RecentVersion* Find(int64_t version) const;  // null when unknown

 private:
  bool MayBeNeeded(int64_t version) const;

  const int64_t reach_;
  const Needs needs_;
  std::map<int64_t, RecentVersion> versions_;
};

}  // namespace tandem::trainer
