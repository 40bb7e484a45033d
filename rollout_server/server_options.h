// ServerOptions: the options of a rollout server, section `server` of a run file.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "common/base/log.h"
#include "common/options/options.h"
#include "common/rpc/tls_directory.h"
#include "rollout_server/engine/engine_options.h"

namespace tandem::rollout {

struct ServerOptions {
  std::string model;                       // Hugging Face directory
  std::string listen = "127.0.0.1:50051";  // port 0 picks one
  std::string http_listen;                 // empty: no HTTP
  std::string http_port_file;              // empty: none
  std::string
      served_model_name;  // by which HTTP callers know the model; empty: as `model` was given
  rpc::TlsOptions tls;
  // Serve without TLS on an address that others can reach.
  bool insecure_plaintext_open_to_the_network = false;
  std::string observe_listen;  // empty: no probes, no /metrics
  double liveness_seconds = 120;
  std::string trace_file;       // empty: no spans
  std::string history;          // empty: none
  std::string port_file;        // empty: none
  int64_t stream_interval = 1;  // tokens
  int64_t max_queued_groups = 256;
  int64_t remembered_groups = 256;
  int64_t memory_bytes = int64_t{2} << 30;  // for groups, beside the KV cache
  double max_deadline_seconds = 86400;      // for one group or score
  int64_t max_message_bytes = 8 << 20;
  // After this the caller makes another connection, and shows its certificate of that day.
  double max_connection_age_seconds = 3600;
  double lease_seconds = 60;
  double drain_seconds = 60;
  int64_t stopped_exit_code = 0;  // when a signal ended the server
  bool reflection = false;
  log::LogOptions log;
  EngineOptions engine;
};

void BindOptions(OptionBinder& binder, ServerOptions& options);

// Section `drift.inject` of a run file, beside `server`: engine.faults.
void BindInjection(OptionBinder& binder, ServerOptions& options);

// `listen` (HOST:PORT) with another host, another port or both; an empty host and a negative port
// stay as they are. An IPv6 address may be given without its brackets.
std::string WithHostAndPort(const std::string& listen, std::string host, int port);

// Checks what no single option can tell.
//   INVALID_ARGUMENT  no model; a listen or observe address that is not HOST:PORT; plaintext on an
//                     address that is not loopback, unless insecure_plaintext_open_to_the_network;
//                     that option beside TLS; a token without TLS
absl::Status CheckOptions(const ServerOptions& options);

}  // namespace tandem::rollout
