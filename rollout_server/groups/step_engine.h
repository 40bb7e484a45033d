// StepEngine: what EngineThread needs of an engine. ModelEngine adapts the real Engine (same
// contracts, see rollout_server/engine/engine.h); tests serve a scripted one without LibTorch.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/weight_version.h"
#include "common/weights/host_tensor.h"
#include "rollout_server/engine/engine.h"
#include "rollout_server/engine/schedule/group.h"

namespace tandem::rollout {

// Use from one thread, except Validate, Stage, Arrive and arrival_memory, which are thread-safe and
// may run beside Step.
class StepEngine {
 public:
  virtual ~StepEngine() = default;

  virtual absl::Status Validate(const GroupRequest& request) const = 0;
  virtual absl::Status Add(GroupRequest request) = 0;
  virtual void PutLast(GroupKey key) = 0;
  virtual bool Abort(GroupKey key) = 0;
  virtual std::vector<EngineEvent> StopEarly(GroupKey key) = 0;
  virtual bool HasWork() const = 0;
  virtual absl::StatusOr<std::vector<EngineEvent>> Step() = 0;
  virtual absl::StatusOr<std::unique_ptr<StagedWeights>> Stage(
      std::vector<HostTensor> tensors) const = 0;
  virtual std::optional<Device> arrival_memory() const = 0;
  virtual absl::StatusOr<std::unique_ptr<ArrivingWeights>> Arrive() const = 0;
  virtual std::vector<GroupKey> Install(std::unique_ptr<StagedWeights> staged,
                                        WeightVersion version) = 0;
  virtual void HoldAdmissions(bool hold) = 0;
  virtual InFlight in_flight() const = 0;
  virtual absl::StatusOr<std::unique_ptr<ScoreRun>> StartScore(std::vector<ScoreSequence> sequences,
                                                               const ScoreOptions& options) = 0;
  virtual WeightVersion live_version() const = 0;
  virtual EngineStats Stats() const = 0;
};

}  // namespace tandem::rollout
