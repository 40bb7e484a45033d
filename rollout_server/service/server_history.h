// ServerHistory: what a rollout server writes into its history (common/observe/history.h): the
// weights it installed, and the completions sampled under them. docs/run_directory.md has the
// schema. Used by rollout_server.cc and weight_service.cc. A null history writes nothing.
// Thread-safe.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "common/base/weight_version.h"
#include "common/observe/history.h"
#include "common/weights/digest.h"
#include "rollout_server/engine/schedule/group.h"

namespace tandem::rollout {

class ServerHistory {
 public:
  explicit ServerHistory(std::unique_ptr<History> history) : history_(std::move(history)) {}

  // Before anybody can call the server, and once its address is known.
  void Started(std::string_view in_flight, const DigestMap& digests);
  void Listens(const std::string& address);

  // From the engine thread, so that these two are in the order in which they happened.
  void Drew(const std::string& run_id, int64_t group_id, const FinishedCompletion& completion);
  void Installed(WeightVersion version);

  // From the threads of the weight service.
  void EpochBegan(const std::string& run_id, int64_t epoch);
  void Committed(int64_t epoch, WeightVersion version, const DigestMap& digests);

 private:
  const std::unique_ptr<History> history_;
};

}  // namespace tandem::rollout
