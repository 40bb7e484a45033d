// RolloutServer: owns every long-lived part of a rollout server, in order of need, and their end.
//
// Life cycle: Create (listening and serving), Run until a stop is asked for or the engine fails,
// destroy.
#pragma once

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/clock.h"
#include "common/base/exit_codes.h"
#include "common/observe/observation.h"
#include "common/process/stop_signal.h"
#include "rollout_server/groups/served_model.h"
#include "rollout_server/server_options.h"

namespace tandem::rollout {

class RolloutServer {
 public:
  // Serves `loaded` at options.listen, and sets probes and metrics of `observation`, which must
  // outlive it.
  //   INVALID_ARGUMENT    CheckOptions; the files of options.tls (rpc::AccessControl)
  //   ALREADY_EXISTS      the address cannot be bound: the port is in use, or not of this machine
  //   NOT_FOUND           options.reflection without gRPC's reflection library
  //   RESOURCE_EXHAUSTED  no memory for the weights of a push
  //   other errors from the port file
  static absl::StatusOr<std::unique_ptr<RolloutServer>> Create(
      const ServerOptions& options, LoadedEngine loaded, Observation* observation,
      SecondsClock clock = MonotonicSeconds);

  ~RolloutServer();  // ends running groups and calls at once
  RolloutServer(const RolloutServer&) = delete;
  RolloutServer& operator=(const RolloutServer&) = delete;

  const std::string& address() const;  // HOST:PORT, the port as bound
  int http_port() const;               // 0: no HTTP

  // Waits until `stop` is requested, then drains. An engine failure ends it with that error.
  absl::Status Run(const StopSignal& stop);

  // Refuses new groups with UNAVAILABLE, reports NOT_SERVING, lets running groups finish for at
  // most drain_seconds, frees the rest, and stops listening. Idempotent.
  void Drain();

  // The first half of Drain: refuses new groups, while running ones go on.
  void StartDrain();

 private:
  struct Impl;
  explicit RolloutServer(std::unique_ptr<Impl> impl);
  const std::unique_ptr<Impl> impl_;
};

// What the process of a rollout server does once its configuration is read: opens the observe port,
// loads the model, and serves until a signal. Installs the signal handlers. Writes the address to
// standard output, and the cause of an early end to standard error. Returns the exit code.
int RunServer(ServerOptions options);

// Writes to standard error why the process ends; returns `code`, for main to return.
int Fail(const absl::Status& status, ExitCode code);

}  // namespace tandem::rollout
