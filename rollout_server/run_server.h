// RunServer: what a rollout server process does once its configuration is read: open the observe
// port, load the model, serve until a signal. Used by main.cc.
#pragma once

#include "absl/status/status.h"
#include "common/base/exit_codes.h"
#include "rollout_server/server_options.h"

namespace tandem::rollout {

// Says on standard error why it ended early, and on standard output where it listens. Installs the
// signal handlers. Returns the exit code.
int RunServer(ServerOptions options);

// Says on standard error why the process ends; returns `code`, for main to return.
int Fail(const absl::Status& status, ExitCode code);

}  // namespace tandem::rollout
