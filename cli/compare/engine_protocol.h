// The protocol of engine adapters (docs/engines.md) as text: requests that are written, replies that
// are read. engine_process.cc sends and receives them. Pure.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "cli/compare/compared_engine.h"

namespace tandem::cli {

inline constexpr int64_t kEngineProtocol = 1;

// One line each, with its end.
std::string InfoRequest(int64_t id);
std::string SampleRequest(int64_t id, const std::vector<std::vector<int32_t>>& prompts,
                          const EngineSampling& sampling);
std::string ScoreRequest(int64_t id, const std::vector<RowToScore>& rows, double temperature);
std::string LoadWeightsRequest(int64_t id, const std::string& directory);

// The reply to request `id`. Errors of all four:
//   INVALID_ARGUMENT, UNIMPLEMENTED, INTERNAL  the reply is an error of kind invalid, unsupported,
//                                              failed
//   DATA_LOSS  the line is no reply to this request: not JSON, another id, a field (named) missing
//              or of another type or length
absl::StatusOr<EngineInfo> ReadInfo(std::string_view line, int64_t id);
absl::StatusOr<std::vector<DrawnCompletion>> ReadCompletions(std::string_view line, int64_t id,
                                                             int64_t num_prompts);
absl::StatusOr<std::vector<RowScore>> ReadScores(std::string_view line, int64_t id,
                                                 const std::vector<RowToScore>& rows);
absl::Status ReadLoaded(std::string_view line, int64_t id);

}  // namespace tandem::cli
