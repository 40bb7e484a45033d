// The project's own rollout engine as a ComparedEngine, in this process. Used by `tandem drift
// compare`.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "cli/compare/compared_engine.h"
#include "cli/compare/engine_spec.h"

namespace tandem::cli {

// `capacity_tokens`: of the longest batch that is sampled at once. Errors are those of ChooseDType
// and Engine::Create.
absl::StatusOr<std::unique_ptr<ComparedEngine>> StartTandemEngine(const EngineSpec& spec,
                                                                  const std::string& model,
                                                                  int64_t capacity_tokens);

}  // namespace tandem::cli
