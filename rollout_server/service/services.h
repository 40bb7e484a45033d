// The two gRPC services of a rollout server, and the parts that they share.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

#include "common/observe/tracer.h"
#include "rollout_server/groups/engine_thread.h"
#include "rollout_server/groups/group_registry.h"
#include "rollout_server/groups/ownership.h"
#include "rollout_server/groups/served_model.h"
#include "rollout_server/groups/worker_thread.h"
#include "rollout_server/service/server_history.h"
#include "rollout_server/service/server_metrics.h"
#include "rollout_server/weights/push_seat.h"
#include "rollout_server/weights/weight_receiver.h"

namespace grpc {
class Service;
}

namespace tandem::rollout {

// The parts of the server that both services use. All must outlive them.
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
  int32_t stream_interval = 1;  // tokens of a completion that a stream sends together
  int64_t max_queued_groups = 0;
  double max_deadline_seconds = 0;  // of a GenerateGroup or Score
  double liveness_seconds = 0;      // an engine that was silent for longer counts as hung
};

// RolloutService: GenerateGroup, Score, AbortGroup and GetInfo (stages 1 to 3; contract in
// proto/rollout.proto). It uses gRPC's callback API: a gRPC thread checks a call, hands it over and
// returns; it never computes.
std::unique_ptr<grpc::Service> MakeRolloutService(const ServiceParts& parts);

// WeightService: the weight push (weight sync; stage 9; contract in proto/weights.proto). Commits
// and claims run one after the other on `worker`. Calls that wait for other members of the push
// group run on `push_worker`. Chunks are copied on the gRPC thread that reads them. Both threads
// must outlive the service.
std::unique_ptr<grpc::Service> MakeWeightService(const ServiceParts& parts, WorkerThread* worker,
                                                 WorkerThread* push_worker);

}  // namespace tandem::rollout
