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
#include "common/observe/observation.h"
#include "common/process/stop_signal.h"
#include "rollout_server/groups/served_model.h"
#include "rollout_server/server_options.h"

namespace tandem::rollout {

class RolloutServer {
 public:
  // Serves `loaded` at options.listen, and shows itself on `observation`, which must outlive it.
  //   INVALID_ARGUMENT  CheckOptions; the files of options.tls (rpc::AccessControl)
  //   ALREADY_EXISTS    the address cannot be bound: the port is in use, or not of this machine
  //   NOT_FOUND         options.reflection without gRPC's reflection library
  //   RESOURCE_EXHAUSTED  no memory for the weights of a push
  //   other errors from the port file
  static absl::StatusOr<std::unique_ptr<RolloutServer>> Create(
      const ServerOptions& options, LoadedEngine loaded, Observation* observation,
      SecondsClock clock = MonotonicSeconds);

  ~RolloutServer();  // ends at once what still runs
  RolloutServer(const RolloutServer&) = delete;
  RolloutServer& operator=(const RolloutServer&) = delete;

  const std::string& address() const;  // HOST:PORT, the port as bound

  // Waits until `stop` is requested, then drains. An engine failure ends it with that error.
  absl::Status Run(const StopSignal& stop);

  // Refuses new groups with UNAVAILABLE, reports NOT_SERVING, lets running groups finish for at
  // most drain_seconds, frees the rest, and stops listening. Idempotent.
  void Drain();

  // The first half of Drain: what runs goes on.
  void StartDrain();

 private:
  struct Impl;
  explicit RolloutServer(std::unique_ptr<Impl> impl);
  const std::unique_ptr<Impl> impl_;
};

}  // namespace tandem::rollout
