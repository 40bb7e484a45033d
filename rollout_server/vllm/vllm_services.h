// The gRPC services vllm.Inference and vllm.Control (proto/vllm), with the roles, tokens, limits and
// ownership of our own (docs/vllm_api.md).
#pragma once

#include <memory>

#include "rollout_server/groups/worker_thread.h"
#include "rollout_server/http/prompt_fields.h"
#include "rollout_server/http/request_fields.h"
#include "rollout_server/service/services.h"
#include "rollout_server/vllm/weight_control.h"

namespace tandem::rollout {

// All must outlive the services. Texts are made on `texts`, so that neither the engine's thread nor
// gRPC's wait for them.
std::unique_ptr<grpc::Service> MakeVllmInference(const ServiceParts& parts, const ModelFacts* facts,
                                                 const PromptReader* prompts, WorkerThread* texts);
std::unique_ptr<grpc::Service> MakeVllmControl(const ServiceParts& parts, const ModelFacts* facts,
                                               WeightControl* control);

}  // namespace tandem::rollout
