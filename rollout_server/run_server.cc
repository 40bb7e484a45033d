#include "rollout_server/run_server.h"

#include <cstdio>
#include <string>
#include <utility>

#include "common/base/exit_codes.h"
#include "common/base/log.h"
#include "common/observe/observation.h"
#include "common/options/command_line.h"
#include "common/process/stop_signal.h"
#include "common/rpc/credentials.h"
#include "rollout_server/groups/served_model.h"
#include "rollout_server/rollout_server.h"

namespace tandem::rollout {
namespace {

absl::StatusOr<LoadedEngine> LoadUnlessStopped(const ServerOptions& options,
                                               const StopSignal& stop) {
  const EndWhileLoading end(stop, static_cast<ExitCode>(options.stopped_exit_code));
  return LoadEngine(options.model, options.engine);
}

}  // namespace

int Fail(const absl::Status& status, ExitCode code) {
  PrintFailure("rollout_server", status);
  return ToInt(code);
}

int RunServer(ServerOptions options) {
  options.log.role = "rollout_server";
  absl::Status bad = CheckOptions(options);
  bad.Update(rpc::AccessControl::Check(options.tls));  // before the model is loaded
  if (!bad.ok()) return Fail(bad, ExitCode::kUsage);
  if (absl::Status log = log::Configure(options.log); !log.ok()) {
    return Fail(log, ExitCode::kStorage);
  }
  const StopSignal stop;
  Observation observation("rollout_server");
  if (absl::Status served = observation.Serve(options.observe_listen); !served.ok()) {
    return Fail(served, ExitCode::kUsage);
  }
  absl::StatusOr<LoadedEngine> engine = LoadUnlessStopped(options, stop);
  if (!engine.ok()) return Fail(engine.status(), ExitCode::kBadModelOrData);
  auto server = RolloutServer::Create(options, *std::move(engine), &observation);
  if (!server.ok()) return Fail(server.status(), ExitCodeFor(server.status()));
  std::printf("listening on %s\n", (*server)->address().c_str());
  std::fflush(stdout);
  const absl::Status ended = (*server)->Run(stop);
  return ended.ok() ? static_cast<int>(options.stopped_exit_code)
                    : Fail(ended, ExitCode::kInternal);
}

}  // namespace tandem::rollout
