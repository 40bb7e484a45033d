// CaptureServer: samples groups from a live rollout server, as a client without ownership, and
// keeps everything that the server says about them as a capture. `tandem drift capture` uses it.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/capture/capture.h"
#include "common/rpc/credentials.h"

namespace tandem::cli {

struct CaptureRequest {
  std::string address;
  rpc::Caller caller;
  std::string model;  // directory the server was started with: config and tokenizer
  std::vector<std::vector<int32_t>> prompts;
  int32_t completions = 8;  // of each prompt
  offpolicy::CapturedSampling sampling;
  uint64_t seed = 1;
  int64_t groups_in_flight = 8;
  double timeout_seconds = 300;  // of one group
};

// Fails as a whole if one group fails, because the groups that are left would be a biased sample.
//   FAILED_PRECONDITION  another run owns the server; the server has another tokenizer or model
//                        than `model`; new weights were installed meanwhile (capture again)
//   any error of the calls, with the server's address in the message
absl::StatusOr<offpolicy::Capture> CaptureServer(const CaptureRequest& request,
                                                 const std::function<void(int64_t done)>& progress);

}  // namespace tandem::cli
