#include "rollout_server/server_options.h"

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace tandem::rollout {

bool IsLoopback(const std::string& address) {
  if (absl::StartsWith(address, "unix:")) return true;
  const std::string host = address.substr(0, address.rfind(':'));
  return host == "localhost" || host == "[::1]" || absl::StartsWith(host, "127.");
}

absl::Status CheckOptions(const ServerOptions& options) {
  if (options.model.empty()) {
    return absl::InvalidArgumentError(
        "server.model is empty: name a model directory (--model DIR)");
  }
  const size_t colon = options.listen.rfind(':');
  int port = 0;
  if (!absl::StartsWith(options.listen, "unix:") &&
      (colon == std::string::npos || colon == 0 ||
       !absl::SimpleAtoi(options.listen.substr(colon + 1), &port) || port < 0 || port > 65535)) {
    return absl::InvalidArgumentError(
        absl::StrCat("server.listen is '", options.listen, "', must be HOST:PORT"));
  }
  if (!IsLoopback(options.listen) && !options.allow_insecure) {
    return absl::InvalidArgumentError(
        absl::StrCat("server.listen is '", options.listen,
                     "': plaintext gRPC is served on loopback only (use 127.0.0.1 or localhost). "
                     "This version has "
                     "no mutual TLS; --allow-insecure serves it to a network you trust"));
  }
  return absl::OkStatus();
}

}  // namespace tandem::rollout
