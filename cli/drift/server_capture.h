// CaptureServer: samples groups from a live rollout server, as a guest, and keeps everything it
// says about them as a capture. `tandem drift capture` uses it.
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

// Fails as a whole when one group does: a capture with holes would be another sample.
//   FAILED_PRECONDITION  another run owns the server; the server serves another tokenizer or model
//                        than `model`; new weights were installed meanwhile (capture again)
//   any code of the calls, with the server's address
absl::StatusOr<offpolicy::Capture> CaptureServer(const CaptureRequest& request,
                                                 const std::function<void(int64_t done)>& progress);

}  // namespace tandem::cli
