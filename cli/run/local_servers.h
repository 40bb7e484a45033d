// LocalServers: rollout servers as child processes on this machine, each on a free port. The
// launcher and `tandem bench push` use it.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "cli/io/child_process.h"

namespace tandem::cli {

// Thread-compatible. Start it from a thread that lives as long as the process (child_process.h).
// The destructor kills running servers.
class LocalServers {
 public:
  // Returns the command line of server `server`, which writes its port to `port_file` when it is
  // ready. `port` is where it served before a restart; 0 if it has not served yet.
  using Argv = std::function<std::vector<std::string>(int64_t server, int64_t port,
                                                      const std::string& port_file)>;

  // Starts `count` more servers, with logs and port files in the directory `logs`.
  //   UNAVAILABLE  the directory cannot be written, or a program does not exist (named)
  absl::Status Start(const std::string& logs, int64_t count, const Argv& argv);

  // Restarts server `server`, which has ended, at its address if Ready has taken that. Errors are
  // those of Start.
  absl::Status StartAgain(size_t server, const Argv& argv);
  // True if it has written its port since its last start. Never waits.
  bool IsReady(size_t server) const;

  // Takes the addresses of servers that have become ready, in order. Returns true when all are
  // ready. Never waits.
  bool Ready();

  const std::vector<std::unique_ptr<ChildProcess>>& children() const { return children_; }
  const std::vector<std::string>& addresses() const { return addresses_; }  // of the ready ones

  // Sends SIGTERM to all servers, and SIGKILL to those that still run after `grace_seconds`.
  void Stop(double grace_seconds);

 private:
  absl::StatusOr<std::unique_ptr<ChildProcess>> StartOne(size_t server, int64_t port,
                                                         const Argv& argv) const;

  std::string logs_;
  std::vector<std::unique_ptr<ChildProcess>> children_;
  std::vector<std::string> port_files_;
  std::vector<std::string> addresses_;
};

}  // namespace tandem::cli
