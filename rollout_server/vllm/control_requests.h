// What vLLM's clients write in calls for pauses and weights, by gRPC and HTTP. Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "rollout_server/http/json_fields.h"
#include "rollout_server/vllm/weight_control.h"

namespace tandem::rollout {

// "abort" or "keep".
//   UNIMPLEMENTED     "wait"
//   INVALID_ARGUMENT  another text
absl::StatusOr<PauseHow> PauseHowNamed(const std::string& mode);

// {"weight_dir": DIRECTORY, "digests": {TENSOR: HEX}}.
//   INVALID_ARGUMENT  it is not so
//   UNIMPLEMENTED     no weight_dir: weights by NCCL or IPC
absl::StatusOr<WeightControl::Update> ReadUpdate(const Json& update);

// The number that a weight version's name is; none for none.
//   INVALID_ARGUMENT  it is no number
absl::StatusOr<std::optional<int64_t>> VersionNamed(const std::optional<std::string>& name);

}  // namespace tandem::rollout
