// What a gRPC call shows of its caller: the secret in its metadata, the name in its certificate.
#pragma once

#include <string>
#include <utility>

#include "common/rpc/caller_secret.h"
#include "common/rpc/credentials.h"
#include "rollout_server/groups/ownership.h"

namespace tandem::rollout {

// `Context`: a gRPC server context. `run_id`: that the call names.
template <typename Context>
CallerProof ProofOf(const Context& context, std::string run_id) {
  CallerProof proof = {.run_id = std::move(run_id)};
  proof.certificate = rpc::IdentityOf(rpc::PeerOf(*context.auth_context()));
  const auto& metadata = context.client_metadata();
  if (const auto secret = metadata.find(rpc::kCallerSecretKey); secret != metadata.end()) {
    proof.secret.assign(secret->second.data(), secret->second.size());
  }
  return proof;
}

}  // namespace tandem::rollout
