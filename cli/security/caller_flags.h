// --tls and --token-file: the same two flags on every subcommand that talks to rollout servers.
#pragma once

#include "absl/status/statusor.h"
#include "common/rpc/credentials.h"
#include "common/rpc/tls_directory.h"

namespace CLI {
class App;
}

namespace tandem::cli {

void AddCallerFlags(CLI::App* sub, rpc::TlsOptions* options);

// Of any role that may call something. Errors of rpc::Caller::Load.
absl::StatusOr<rpc::Caller> LoadCaller(const rpc::TlsOptions& options);

}  // namespace tandem::cli
