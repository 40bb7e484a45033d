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

absl::Status CheckAddress(const char* option, const std::string& address) {
  const size_t colon = address.rfind(':');
  int port = 0;
  if (colon == std::string::npos || colon == 0 || absl::StartsWith(address, "unix:") ||
      absl::StartsWith(address, "unix-abstract:") ||
      !absl::SimpleAtoi(address.substr(colon + 1), &port) || port < 0 || port > 65535) {
    return InvalidArgument(option, " is '", address, "', must be HOST:PORT");
  }
  return absl::OkStatus();
}

absl::Status CheckTransport(const ServerOptions& options) {
  TANDEM_RETURN_IF_ERROR(rpc::CheckTlsOptions(options.tls, "server"));
  const bool secure = !options.tls.directory.empty();
  if (secure && options.insecure_plaintext_open_to_the_network) {
    return InvalidArgument(
        "server.insecure_plaintext_open_to_the_network with server.tls: choose one");
  }
  if (secure || options.insecure_plaintext_open_to_the_network) return absl::OkStatus();
  const bool http_is_open = !options.http_listen.empty() && !IsLoopback(options.http_listen);
  if (IsLoopback(options.listen) && !http_is_open) return absl::OkStatus();
  return InvalidArgument(
      http_is_open ? "server.http_listen is '" : "server.listen is '",
      http_is_open ? options.http_listen : options.listen,
      "': without TLS only loopback is served (127.0.0.1, localhost). Name a directory with "
      "tls.crt, "
      "tls.key and ca.crt as server.tls (`tandem certs` makes one for development), or, where the "
      "network itself keeps everyone else out, say --insecure-plaintext-open-to-the-network");
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
    return InvalidArgument("server.model is empty: name a model directory (--model DIR)");
  }
  if (!options.observe_listen.empty()) {
    TANDEM_RETURN_IF_ERROR(CheckObserveAddress("server.observe_listen", options.observe_listen));
  }
  TANDEM_RETURN_IF_ERROR(CheckAddress("server.listen", options.listen));
  if (!options.http_listen.empty()) {
    TANDEM_RETURN_IF_ERROR(CheckAddress("server.http_listen", options.http_listen));
  } else if (!options.http_port_file.empty()) {
    return InvalidArgument("server.http_port_file without server.http_listen");
  }
  const int64_t kv_tokens = options.engine.kv_capacity_tokens;
  if (kv_tokens != 0 && kv_tokens < KvBlockPool::kBlockTokens) {
    return InvalidArgument("server.engine.kv_capacity_tokens is ", kv_tokens, ", must be at least ",
                           KvBlockPool::kBlockTokens, ", or 0 for what fits");
  }
  TANDEM_RETURN_IF_ERROR(CheckAdapters(options.engine));
  return CheckTransport(options);
}

void BindOptions(OptionBinder& binder, ServerOptions& o) {
  binder.Text("model", &o.model,
              "model to load as version 0: a Hugging Face directory, or a name on the Hub "
              "(docs/models.md)");
  binder.Text("listen", &o.listen, "HOST:PORT of gRPC; port 0 picks a free one");
  binder.Text("http_listen", &o.http_listen,
              "HOST:PORT of HTTP: the endpoints of OpenAI's and vLLM's APIs (docs/openai.md), with "
              "the TLS, roles, tokens and limits of gRPC; port 0 picks a free one; empty: off");
  binder.Text("http_port_file", &o.http_port_file,
              "write the bound HTTP port to this file; empty: off");
  binder.Text("served_model_name", &o.served_model_name,
              "the model's name over HTTP; empty: as `model` is given");
  binder.Text(
      "tls", &o.tls.directory,
      "directory of tls.crt, tls.key and ca.crt: mutual TLS; empty: plaintext, on loopback only");
  binder.Text("token_file", &o.tls.token_file,
              "bearer tokens, one per line, of which callers must show one; empty: off");
  binder.Flag(
      "insecure_plaintext_open_to_the_network", &o.insecure_plaintext_open_to_the_network,
      "serve without TLS on an address that is not loopback: whoever reaches it can push weights");
  binder.Text("observe_listen", &o.observe_listen,
              "HOST:PORT of probes, /metrics and /logs over plain HTTP, read-only; empty: off");
  binder.Number("liveness_seconds", &o.liveness_seconds, {.min = 1, .max = 86400}, "s",
                "/livez fails when the engine has work and did not move for this long");
  binder.Text("trace_file", &o.trace_file,
              "append spans of groups and commits here as OTLP JSON lines; empty: off");
  binder.Text(
      "history", &o.history,
      "directory for a record of the weights installed and the completions drawn under them "
      "(docs/run_directory.md); empty: off");
  binder.Text("port_file", &o.port_file, "write the bound gRPC port to this file; empty: off");
  binder.Integer("stream_interval", &o.stream_interval, {.min = 1, .max = 1e6}, "tokens",
                 "a stream over HTTP or vLLM's gRPC sends the first token of a completion at once, "
                 "then this many together: a larger number costs less and delivers later");
  binder.Integer("max_queued_groups", &o.max_queued_groups, {.min = 1, .max = 1e6}, "groups",
                 "groups that may wait; more are refused with a retry hint");
  binder.Integer("remembered_groups", &o.remembered_groups, {.min = 0, .max = 1e6}, "groups",
                 "finished groups whose result a repeated call gets again");
  binder.Integer("memory_bytes", &o.memory_bytes, {.min = 1 << 20, .max = 1e15}, "bytes",
                 "host memory of groups beside the KV cache: waiting requests, records of drawn "
                 "tokens with their supports and top_logprobs, results that are not fetched, "
                 "remembered groups; when it is full these are forgotten, then groups are refused");
  binder.Number("max_deadline_seconds", &o.max_deadline_seconds, {.min = 1, .max = 1e7}, "s",
                "longest deadline of a GenerateGroup or Score call; a call with a later one, or "
                "with none, is refused");
  binder.Integer("max_message_bytes", &o.max_message_bytes, {.min = 4 << 20, .max = 1 << 30},
                 "bytes", "largest gRPC message taken");
  binder.Number("max_connection_age_seconds", &o.max_connection_age_seconds, {.min = 1, .max = 1e6},
                "s",
                "after this a connection takes no new call: callers make another and show who they "
                "are by then");
  binder.Number("lease_seconds", &o.lease_seconds, {.min = 0.1, .max = 86400}, "s",
                "how long a silent run keeps the server, unless it names a lease");
  binder.Number("drain_seconds", &o.drain_seconds, {.min = 0, .max = 86400}, "s",
                "how long running groups may finish after SIGTERM");
  binder.Integer("stopped_exit_code", &o.stopped_exit_code, {.min = 0, .max = 255}, "",
                 "exit code after a signal and the drain; not 0 where 0 would say that the work is "
                 "done, as to a Kubernetes Job");
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
  binder.Section("engine", "model, KV cache and scheduler", o.engine);
}

void BindInjection(OptionBinder& binder, ServerOptions& o) {
  binder.Section("drift", "drift lab", [&](OptionBinder& drift) {
    drift.Section(
        "inject",
        "faults of known size in the rollout server, all off by default (docs/calibration.md)",
        o.engine.faults);
  });
}

}  // namespace tandem::rollout
