// GrpcReward: a reward service of the user over gRPC (component grpc), proto/reward.proto: a batch
// of completions per call. Used by external_parts.cc. gRPC is not visible in this header.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "common/options/options.h"
#include "trainer/rewards/external/question_pool.h"
#include "trainer/rewards/external/service_call.h"

namespace tandem::trainer {

struct GrpcRewardOptions {
  std::string address;     // HOST:PORT, or any target of gRPC
  bool tls = false;        // verified by ca_file
  std::string ca_file;     // PEM; empty: the authorities of the system
  std::string token_file;  // its first line is the bearer token; empty: none
  ServiceOptions service;
  int64_t batch_size = 16;
};
void BindOptions(OptionBinder& binder, GrpcRewardOptions& options);

// INVALID_ARGUMENT: no address; a token without TLS; with exit code 3, a file that cannot be read.
absl::Status CheckGrpcRewardOptions(const GrpcRewardOptions& options);

// Use from one thread. Each has a connection of its own, which gRPC opens again when it breaks.
class GrpcReward : public Asker {
 public:
  // `caller` is shared by the workers and outlives them; so must `end`.
  GrpcReward(const GrpcRewardOptions& options, ServiceCaller* caller, EndSign* end);
  ~GrpcReward() override;

  // A call that fails after all attempts fails for all questions. Errors of single answers are
  // those of ParseAnswer.
  //   INVALID_ARGUMENT  another number of results than questions
  //   the code of the service; CANCELLED when `end` was given, found within 0.1 s
  std::vector<RewardAnswer> Ask(std::span<const RewardQuestion> questions) override;

 private:
  struct Impl;
  const std::unique_ptr<Impl> impl_;
};

}  // namespace tandem::trainer
