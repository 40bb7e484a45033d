// ObserveServer: the read-only HTTP port of a process, for probes, Prometheus and people:
//
//   /metrics                       Prometheus text format
//   /startupz /readyz /livez       200 or 503, and one line that says why
//   /logs?lines=N&after=NUMBER     the newest lines of the log, each behind its number and a space:
//                                  at most N (200; 2000 are kept), with numbers above NUMBER
//
// GET and HEAD, plaintext, no authentication: it changes nothing and shows no prompt, completion or
// weight. Requests of more than 4 KiB, and clients slower than 5 s, are cut. kThreads answer, of
// which pages of /metrics and /logs take at most kThreadsForPages, and past that are refused with
// 503: who reads them slowly keeps no probe waiting. civetweb stays behind this header:
// prometheus-cpp's own exposer already brings it, and it has the caps as options.
#ifndef TANDEM_COMMON_OBSERVE_OBSERVE_SERVER_H_
#define TANDEM_COMMON_OBSERVE_OBSERVE_SERVER_H_

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/observe/health.h"
#include "common/observe/metrics.h"

namespace tandem {

// HOST:PORT as the port takes it: an IPv4 address, [IPv6] or localhost, and 0 to 65535.
//   INVALID_ARGUMENT  it is not; names `knob`
absl::Status CheckObserveAddress(const std::string& knob, const std::string& address);

class ObserveServer {
 public:
  // Listens from here on. Both must outlive it. Port 0 picks one. `patience`: with a client that
  // sends its request, or reads its answer, slowly.
  //   UNAVAILABLE       the address cannot be bound (named)
  //   INVALID_ARGUMENT  CheckObserveAddress
  static absl::StatusOr<std::unique_ptr<ObserveServer>> Listen(
      const std::string& address, const MetricsRegistry* metrics, const Health* health,
      absl::Duration patience = absl::Seconds(5));
  ~ObserveServer();  // ends what is being answered
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

#endif  // TANDEM_COMMON_OBSERVE_OBSERVE_SERVER_H_
