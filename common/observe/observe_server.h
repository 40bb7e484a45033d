// ObserveServer: the read-only HTTP port of a process, for probes, Prometheus and people:
//
//   /metrics                       Prometheus text format
//   /startupz /readyz /livez       200 or 503, and one line with the reason
//   /logs?lines=N&after=NUMBER     the newest log lines, each preceded by its number and a space:
//                                  at most N (default 200; 2000 are kept), numbered above NUMBER
//
// It accepts GET and HEAD over plaintext and without authentication, because it changes nothing and
// shows no prompt, completion or weight. Requests over 4 KiB and clients slower than 5 s are cut
// off. kThreads threads answer. Pages of /metrics and /logs take at most kThreadsForPages of them
// and are refused with 503 beyond that, so that slow readers cannot block probes. civetweb is not
// visible to callers; prometheus-cpp's exposer depends on it anyway, and it has these limits as
// options.
#pragma once

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/observe/health.h"
#include "common/observe/metrics.h"

namespace tandem {

// Checks an address of the form HOST:PORT: an IPv4 address, [IPv6] or localhost, and a port from 0
// to 65535.
//   INVALID_ARGUMENT  it has another form; the message names `option`
absl::Status CheckObserveAddress(const std::string& option, const std::string& address);

class ObserveServer {
 public:
  // Starts to listen. `metrics` and `health` must outlive the server. Port 0 picks a free port.
  // `patience` is the time allowed to a client that sends its request or reads its answer slowly.
  //   UNAVAILABLE       the address cannot be bound (named)
  //   INVALID_ARGUMENT  as CheckObserveAddress
  static absl::StatusOr<std::unique_ptr<ObserveServer>> Listen(
      const std::string& address, const MetricsRegistry* metrics, const Health* health,
      absl::Duration patience = absl::Seconds(5));
  ~ObserveServer();  // cuts off answers in progress
  ObserveServer(const ObserveServer&) = delete;
  ObserveServer& operator=(const ObserveServer&) = delete;

  int port() const;

  static constexpr int kThreads = 20;
  static constexpr int kThreadsForPages = 16;

 private:
  struct Impl;
  explicit ObserveServer(std::unique_ptr<Impl> impl);
  const std::unique_ptr<Impl> impl_;
};

}  // namespace tandem
