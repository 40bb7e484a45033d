// RewardModelServer: a reward model over gRPC, as proto/reward.proto has it, for trainers whose
// component `grpc` calls it. Used by `tandem serve-reward-model`. gRPC is not visible in this
// header.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "trainer/rewards/model/reward_scorer.h"

namespace tandem::trainer {

// Serves until it is destroyed, which waits for calls under way. Calls are answered one after the
// other: a pass has all threads.
class RewardModelServer {
 public:
  // Listens on HOST:PORT in plaintext; port 0: a free one.
  //   UNAVAILABLE  it cannot listen there
  static absl::StatusOr<std::unique_ptr<RewardModelServer>> Start(
      std::unique_ptr<RewardScorer> scorer, const std::string& listen);
  ~RewardModelServer();
  RewardModelServer(const RewardModelServer&) = delete;
  RewardModelServer& operator=(const RewardModelServer&) = delete;

  std::string address() const;  // HOST:PORT that it listens on

 private:
  struct Impl;
  explicit RewardModelServer(std::unique_ptr<Impl> impl);
  const std::unique_ptr<Impl> impl_;
};

}  // namespace tandem::trainer
