// An engine in a process of its own, behind the protocol of docs/engines.md: `python -m
// tandem_rl.engines.NAME`. Used by `tandem drift compare`. The process ends with this object.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "cli/compare/compared_engine.h"
#include "cli/compare/engine_spec.h"

namespace tandem::cli {

struct EngineStart {
  EngineSpec spec;
  EnginePython python;
  std::string model;     // directory
  std::string log_path;  // what the engine and its libraries print is appended here
};

// Called several times a second while a reply is awaited. An error ends the wait with it.
using WhileWaiting = std::function<absl::Status()>;

// Starts the program and waits until it has answered `info`, that is, until it runs.
//   UNAVAILABLE  it did not start or ended (exit code 9); the message has the end of its log
//   DATA_LOSS    it does not speak the protocol
//   errors of `waiting`
absl::StatusOr<std::unique_ptr<ComparedEngine>> StartEngineProcess(const EngineStart& start,
                                                                   WhileWaiting waiting);

}  // namespace tandem::cli
