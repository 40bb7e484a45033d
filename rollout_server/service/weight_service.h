// WeightService: the weight push over gRPC (stage 9; contract in proto/weights.proto). Commits and
// claims run one after the other on a worker thread, and what waits for other members of the push
// group on another; chunks are copied where they arrive.
#pragma once

#include <memory>

#include "rollout_server/groups/worker_thread.h"
#include "rollout_server/service/rollout_service.h"

namespace tandem::rollout {

// The threads must outlive the service.
std::unique_ptr<grpc::Service> MakeWeightService(const ServiceParts& parts, WorkerThread* worker,
                                                 WorkerThread* push_worker);

}  // namespace tandem::rollout
