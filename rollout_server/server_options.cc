#include "rollout_server/server_options.h"

#include <algorithm>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/observe/observe_server.h"
#include "common/rendezvous/loopback.h"
#include "rollout_server/engine/schedule/kv_block_pool.h"

namespace tandem::rollout {

namespace {

absl::Status CheckTransport(const ServerOptions& options) {
  TANDEM_RETURN_IF_ERROR(rpc::CheckTlsOptions(options.tls, "server"));
  const bool secure = !options.tls.directory.empty();
  if (secure && options.insecure_plaintext_open_to_the_network) {
    return absl::InvalidArgumentError(
        "server.insecure_plaintext_open_to_the_network with server.tls: choose one");
  }
  if (secure || options.insecure_plaintext_open_to_the_network || IsLoopback(options.listen)) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "server.listen is '", options.listen,
      "': without TLS only loopback is served (127.0.0.1, localhost). Name a directory with "
      "tls.crt, "
      "tls.key and ca.crt as server.tls (`tandem certs` makes one for development), or, where the "
      "network itself keeps everyone else out, say --insecure-plaintext-open-to-the-network"));
}

}  // namespace

std::string WithHostAndPort(const std::string& listen, std::string host, int port) {
  if (host.empty() && port < 0) return listen;
  const size_t colon = std::min(listen.rfind(':'), listen.size());
  if (host.empty()) host = listen.substr(0, colon);
  // The numbers of an IPv6 address have colons of their own.
  if (host.find(':') != std::string::npos && !host.starts_with('[')) host = "[" + host + "]";
  return absl::StrCat(host, port < 0 ? listen.substr(colon) : absl::StrCat(":", port));
}

absl::Status CheckOptions(const ServerOptions& options) {
  if (options.model.empty()) {
    return absl::InvalidArgumentError(
        "server.model is empty: name a model directory (--model DIR)");
  }
  if (!options.observe_listen.empty()) {
    TANDEM_RETURN_IF_ERROR(CheckObserveAddress("server.observe_listen", options.observe_listen));
  }
  const size_t colon = options.listen.rfind(':');
  int port = 0;
  if (colon == std::string::npos || colon == 0 || absl::StartsWith(options.listen, "unix:") ||
      absl::StartsWith(options.listen, "unix-abstract:") ||
      !absl::SimpleAtoi(options.listen.substr(colon + 1), &port) || port < 0 || port > 65535) {
    return absl::InvalidArgumentError(
        absl::StrCat("server.listen is '", options.listen, "', must be HOST:PORT"));
  }
  const int64_t kv_tokens = options.engine.kv_capacity_tokens;
  if (kv_tokens != 0 && kv_tokens < KvBlockPool::kBlockTokens) {
    return absl::InvalidArgumentError(
        absl::StrCat("server.engine.kv_capacity_tokens is ", kv_tokens, ", must be at least ",
                     KvBlockPool::kBlockTokens, ", or 0 for what fits"));
  }
  return CheckTransport(options);
}

}  // namespace tandem::rollout
