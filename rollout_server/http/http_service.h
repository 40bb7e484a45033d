// HttpService: the HTTP endpoints of a rollout server: OpenAI's /v1/models, /v1/completions and
// /v1/chat/completions, vLLM's /inference/v1/generate, /tokenize, /detokenize, pauses and weight
// updates, and what tells of the server (docs/openai.md, docs/vllm_api.md). It uses the parts of
// the gRPC services, with their roles, tokens, limits and ownership.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/observe/health.h"
#include "common/observe/metrics.h"
#include "common/rpc/credentials.h"
#include "rollout_server/http/request_reader.h"
#include "rollout_server/server_options.h"
#include "rollout_server/service/services.h"
#include "rollout_server/vllm/weight_control.h"

namespace tandem::rollout {

class HttpService {
 public:
  // What is not in ServiceParts. All must outlive the service.
  struct Needs {
    const rpc::AccessControl* access_control = nullptr;
    const MetricsRegistry* metrics = nullptr;
    WeightControl* control = nullptr;
    const RequestReader* reader = nullptr;
    std::function<ProbeAnswer()> health;  // whether calls are served
  };

  // Listens on options.http_listen.
  //   errors of HttpServer::Listen
  static absl::StatusOr<std::unique_ptr<HttpService>> Listen(const ServiceParts& parts,
                                                             const ServerOptions& options,
                                                             Needs needs);
  ~HttpService();
  HttpService(const HttpService&) = delete;
  HttpService& operator=(const HttpService&) = delete;

  int port() const;

  // As HttpServer::Stop.
  void Stop(absl::Duration at_most);

 private:
  struct Impl;
  explicit HttpService(std::unique_ptr<Impl> impl);
  const std::unique_ptr<Impl> impl_;
};

}  // namespace tandem::rollout
