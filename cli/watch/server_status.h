// AskServer: one line about a rollout server, for `tandem status`. gRPC stays behind this header.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "common/rpc/credentials.h"

namespace tandem::cli {

// "HOST:PORT  llama bf16 fast (avx512)  version 12 (epoch 1)  groups 8 running, 3 queued of 256  KV
// 1200/32768
// ..."
//   DEADLINE_EXCEEDED, UNAVAILABLE  no answer within `timeout_seconds` (address named)
absl::StatusOr<std::string> AskServer(const std::string& address, double timeout_seconds,
                                      const rpc::Caller& caller = {});

}  // namespace tandem::cli
