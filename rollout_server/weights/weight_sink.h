// WeightSink: where verified weights go, as WeightReceiver sees the engine.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "common/base/weight_version.h"
#include "common/model/numerics.h"
#include "common/weights/host_tensor.h"
#include "rollout_server/engine/forward/adapter_weights.h"
#include "rollout_server/engine/forward/staged_weights.h"

namespace tandem::rollout {

// What WeightReceiver needs of the engine. EngineThread implements it; tests keep tensors in
// memory.
class WeightSink {
 public:
  virtual ~WeightSink() = default;

  // Packs a full, verified set (in the order the receiver was given) beside the decode steps.
  virtual absl::StatusOr<std::unique_ptr<StagedWeights>> Stage(std::vector<HostTensor> tensors) = 0;

  // As those of Engine: weights with an adapter beside them, for a sink that holds them so.
  virtual absl::StatusOr<std::unique_ptr<StagedWeights>> StageAdapter(
      const AdapterFactors& adapter) = 0;
  virtual bool unmerged() const = 0;

  // As those of Engine: the device in whose memory weights may arrive without host memory (none:
  // they may not), and memory for the next version there, which this sink must outlive.
  virtual std::optional<Device> arrival_memory() const = 0;
  virtual absl::StatusOr<std::unique_ptr<ArrivingWeights>> Arrive() = 0;

  // Serves from `staged` from the next step on, and returns once that is so: for how many seconds
  // no step could run.
  //   UNAVAILABLE  the engine has stopped; nothing changed
  virtual absl::StatusOr<double> Install(std::unique_ptr<StagedWeights> staged,
                                         WeightVersion version) = 0;
};

}  // namespace tandem::rollout
