// GroupSampler: completions of a running rollout server for commands that make data, as a caller
// without ownership. gRPC is not visible in this header.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/rpc/credentials.h"

namespace tandem::cli {

struct SampledText {
  std::string text;           // without the stop token
  bool is_truncated = false;  // ended by length
};

struct SampledGroup {
  std::vector<SampledText> completions;  // by index
  int64_t prompt_tokens_cached = 0;      // that the prefix cache saved
};

// What a group is sampled from.
struct SampleRequest {
  std::vector<int32_t> prompt;  // at least one id
  int64_t num_completions = 1;
  double temperature = 1;
  double top_p = 1;
  int64_t max_new_tokens = 256;
  uint64_t seed = 0;
};

struct SampledServer {
  std::string model_path;      // as the server has it
  std::string tokenizer_hash;  // XXH3-128 of tokenizer.json, hex
  int64_t max_context_tokens = 0;
  uint64_t num_prompt_tokens_computed = 0;  // since it started
};

// Thread-safe. A call that a busy server refused, or that found no server, is made again until it
// has been tried for `patience_seconds`.
class GroupSampler {
 public:
  // Asks the server who it is.
  //   UNAVAILABLE  there is none at `address`;  others of the call
  static absl::StatusOr<std::unique_ptr<GroupSampler>> Connect(const std::string& address,
                                                               const rpc::Caller& caller,
                                                               double patience_seconds);
  ~GroupSampler();
  GroupSampler(const GroupSampler&) = delete;
  GroupSampler& operator=(const GroupSampler&) = delete;

  const SampledServer& server() const;        // as of Connect
  absl::StatusOr<SampledServer> Ask() const;  // as of now

  // The same request gives the same completions, as far as the server's numerics promise it.
  // Errors are those of GenerateGroup (proto/rollout.proto) after the last attempt.
  absl::StatusOr<SampledGroup> Sample(const SampleRequest& request);

 private:
  struct Impl;
  explicit GroupSampler(std::unique_ptr<Impl> impl);
  const std::unique_ptr<Impl> impl_;
};

}  // namespace tandem::cli
