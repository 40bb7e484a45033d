// SamplingServer: the rollout server of a command that makes data: one that runs already, or one
// that is started for the command and ends with it. And the tokenizer of its model.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "cli/data/group_sampler.h"
#include "cli/run/local_servers.h"
#include "common/rpc/tls_directory.h"
#include "common/tokenizer/tokenizer.h"

namespace tandem::cli {

struct ServerFlags {
  std::string server;  // HOST:PORT; empty: one is started
  std::string model;   // directory; empty: the server's own path
  std::string dtype = "fp32";
  int64_t threads = 0;
  bool prefix_cache = true;      // of a server that is started
  double timeout_seconds = 600;  // of a group
  rpc::TlsOptions tls;
};
// --server, --model, --dtype, --threads, --no-prefix-cache, --timeout, --tls, --token-file
void AddServerFlags(CLI::App* sub, ServerFlags& flags);

// How completions are sampled: --temperature, --top-p, --max-new-tokens, --seed.
void AddSampleFlags(CLI::App* sub, SampleRequest& sampling);

// Start it from a thread that lives as long as the process (child_process.h).
class SamplingServer {
 public:
  //   INVALID_ARGUMENT  neither a server nor a model; a server of another tokenizer than the
  //                     model's
  //   NOT_FOUND         no model directory
  //   UNAVAILABLE       no server there, or the started one ended (with the path of its log)
  static absl::StatusOr<std::unique_ptr<SamplingServer>> Open(const ServerFlags& flags);
  ~SamplingServer();
  SamplingServer(const SamplingServer&) = delete;
  SamplingServer& operator=(const SamplingServer&) = delete;

  GroupSampler& sampler() { return *sampler_; }
  const Tokenizer& tokenizer() const { return *tokenizer_; }

 private:
  SamplingServer() = default;
  absl::StatusOr<std::string> StartLocal(const ServerFlags& flags);

  std::string logs_;  // of the local server; removed with it
  LocalServers local_;
  std::unique_ptr<GroupSampler> sampler_;
  std::unique_ptr<Tokenizer> tokenizer_;
};

}  // namespace tandem::cli
