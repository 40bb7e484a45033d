#include "rollout_server/server_options.h"

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace tandem::rollout {

void BindOptions(OptionBinder& binder, ServerOptions& o) {
  binder.Text("model", &o.model, "Hugging Face directory to load as version 0");
  binder.Text("listen", &o.listen, "HOST:PORT of gRPC; port 0 picks a free one");
  binder.Flag("allow_insecure", &o.allow_insecure,
              "allow plaintext gRPC on an address that is not loopback");
  binder.Text("metrics_listen", &o.metrics_listen, "HOST:PORT of /metrics; empty: off");
  binder.Text("port_file", &o.port_file, "write the bound gRPC port to this file; empty: off");
  binder.Integer("max_queued_groups", &o.max_queued_groups, {.min = 1, .max = 1e6}, "groups",
                 "groups that may wait; more are refused with a retry hint");
  binder.Integer("remembered_groups", &o.remembered_groups, {.min = 0, .max = 1e6}, "groups",
                 "finished groups whose result a repeated call gets again");
  binder.Integer("max_message_bytes", &o.max_message_bytes, {.min = 4 << 20, .max = 1 << 30},
                 "bytes", "largest gRPC message taken");
  binder.Number("lease_seconds", &o.lease_seconds, {.min = 0.1, .max = 86400}, "s",
                "how long a silent run keeps the server, unless it names a lease");
  binder.Number("drain_seconds", &o.drain_seconds, {.min = 0, .max = 86400}, "s",
                "how long running groups may finish after SIGTERM");
  binder.Flag("reflection", &o.reflection, "serve gRPC reflection");
  binder.Section("log", "log of this process", [&](OptionBinder& b) {
    b.Choice("level", &o.log.level,
             {{"debug", log::Level::kDebug},
              {"info", log::Level::kInfo},
              {"warning", log::Level::kWarning},
              {"error", log::Level::kError}},
             "least level written");
    b.Choice("format", &o.log.format, {{"text", log::Format::kText}, {"json", log::Format::kJson}},
             "form of a line");
    b.Text("file", &o.log.file, "also append to this file; empty: off");
  });
  binder.Section("engine", "model, KV cache and scheduler",
                 [&](OptionBinder& b) { BindOptions(b, o.engine); });
}

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
