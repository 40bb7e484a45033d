#include "cli/security/caller_flags.h"

#include <CLI/CLI.hpp>

namespace tandem::cli {

void AddCallerFlags(CLI::App* sub, rpc::TlsOptions* options) {
  sub->add_option("--tls", options->directory,
                  "directory of tls.crt, tls.key and ca.crt: calls over mutual TLS");
  sub->add_option("--token-file", options->token_file, "bearer token that the servers ask for");
}

absl::StatusOr<rpc::Caller> LoadCaller(const rpc::TlsOptions& options) {
  return rpc::Caller::Load(options, {rpc::Role::kTrainer, rpc::Role::kClient, rpc::Role::kViewer},
                           "");
}

}  // namespace tandem::cli
