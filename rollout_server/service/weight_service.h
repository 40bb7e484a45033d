// WeightService: the weight push (weight sync) over gRPC (stage 9; contract in
// proto/weights.proto). Commits and claims run one after the other on a worker thread. Calls that
// wait for other members of the push group run on a second one. Chunks are copied on the gRPC
// thread that reads them.
#pragma once

#include <memory>

#include "rollout_server/groups/worker_thread.h"
#include "rollout_server/service/rollout_service.h"

namespace tandem::rollout {

// The threads must outlive the service.
std::unique_ptr<grpc::Service> MakeWeightService(const ServiceParts& parts, WorkerThread* worker,
                                                 WorkerThread* push_worker);

}  // namespace tandem::rollout
