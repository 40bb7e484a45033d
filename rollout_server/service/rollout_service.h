// RolloutService: GenerateGroup, Score, AbortGroup and GetInfo over gRPC (stages 1 to 3; contract
// in proto/rollout.proto). Callback API: a gRPC thread checks, hands over, and returns; it never
// computes.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

#include "common/observe/tracer.h"
#include "rollout_server/groups/engine_thread.h"
#include "rollout_server/groups/group_registry.h"
#include "rollout_server/groups/ownership.h"
#include "rollout_server/groups/served_model.h"
#include "rollout_server/service/server_history.h"
#include "rollout_server/service/server_metrics.h"
#include "rollout_server/weights/push_seat.h"
#include "rollout_server/weights/weight_receiver.h"

namespace grpc {
class Service;
}

namespace tandem::rollout {

// What the two services share; all outlive them.
struct ServiceParts {
  const ServedModel* model = nullptr;
  EngineThread* engine = nullptr;
  GroupRegistry* groups = nullptr;
  Ownership* ownership = nullptr;
  WeightReceiver* weights = nullptr;
  PushSeat* push_seat = nullptr;
  ServerMetrics* metrics = nullptr;
  Tracer* tracer = nullptr;  // null: no spans
  ServerHistory* history = nullptr;
  const std::atomic<bool>* draining = nullptr;
  int64_t max_queued_groups = 0;
  double max_deadline_seconds = 0;  // of a GenerateGroup or Score
  double liveness_seconds = 0;      // of the engine's silence, from which on it counts as hung
};

std::unique_ptr<grpc::Service> MakeRolloutService(const ServiceParts& parts);

}  // namespace tandem::rollout
