// LocalServers: rollout servers as child processes of this machine, each on a port it picked. The
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

// Thread-compatible; start from the thread that lives longest (child_process.h). The destructor
// kills what still runs.
class LocalServers {
 public:
  // The command line of server `server`, which writes the port it serves on to `port_file` once it
  // is ready. `port`: where it served before it is started again; 0: it has not served yet.
  using Argv = std::function<std::vector<std::string>(int64_t server, int64_t port,
                                                      const std::string& port_file)>;

  // Starts `count` more, with logs and port files in the directory `logs`.
  //   UNAVAILABLE  the directory cannot be written, or a program is not there (named)
  absl::Status Start(const std::string& logs, int64_t count, const Argv& argv);

  // Starts server `server`, which has ended, again: at its address if Ready has taken it. Errors as
  // Start.
  absl::Status StartAgain(size_t server, const Argv& argv);
  // Has it written its port since it was started last? Never waits.
  bool IsReady(size_t server) const;

  // Takes the addresses of those that have become ready, in order; true once all are. Never waits.
  bool Ready();

  const std::vector<std::unique_ptr<ChildProcess>>& children() const { return children_; }
  const std::vector<std::string>& addresses() const { return addresses_; }  // of the ready ones

  // SIGTERM to all, SIGKILL to who is still there `grace_seconds` later.
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
