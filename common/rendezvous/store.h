// Store: small texts under names that the processes of a job share while they run, held by one of
// them (c10d's TCPStore). Where ranks meet and say what they are doing.
#ifndef TANDEM_COMMON_RENDEZVOUS_STORE_H_
#define TANDEM_COMMON_RENDEZVOUS_STORE_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace tandem::comm {

struct StoreConnection;  // store_connection.h: c10d's side of it

// Who may come to a store and to the members of groups made over it.
enum class Reach {
  kMachine,  // processes of this machine: everything listens on loopback
  kNetwork,
};

// A copy shares the connection. Thread-safe. A holder that hangs (and is not dead) hangs its
// callers too: who must not hang asks from a thread that it can leave behind.
class Store {
 public:
  // Listens on `port` (0: any free one), of 127.0.0.1 or of all interfaces, and connects to itself.
  // The store lives as long as this and its copies.
  //   UNAVAILABLE  the port is taken or may not be used
  static absl::StatusOr<Store> Host(int port, Reach reach);

  // Tries until `deadline` from now has passed.
  //   DEADLINE_EXCEEDED  nobody listens there
  static absl::StatusOr<Store> Connect(const std::string& host, int port, absl::Duration deadline);

  // Names under `prefix`, out of everyone else's way.
  Store Under(const std::string& prefix) const;

  int port() const;

  // Of all of them:
  //   UNAVAILABLE  the process that holds the store is gone

  // What it was hosted with.
  absl::StatusOr<Reach> GetReach() const;

  absl::Status Set(const std::string& name, const std::string& value) const;

  // Waits until it is set.
  //   DEADLINE_EXCEEDED  it was not
  absl::StatusOr<std::string> Get(const std::string& name, absl::Duration deadline) const;

  absl::StatusOr<bool> Has(const std::string& name) const;

  // Sets it if nobody has, and says what is there now.
  absl::StatusOr<std::string> SetOnce(const std::string& name, const std::string& value) const;

  // Adds to the counter of that name, which starts at 0, and returns what it is now. All who add to
  // one counter get different values.
  absl::StatusOr<int64_t> Add(const std::string& name, int64_t amount) const;

  // Removes the value or counter, so that a long job leaves nothing behind. OK where it is not there.
  absl::Status Delete(const std::string& name) const;

  const StoreConnection& connection() const { return *connection_; }

 private:
  explicit Store(std::shared_ptr<const StoreConnection> connection)
      : connection_(std::move(connection)) {}

  std::shared_ptr<const StoreConnection> connection_;
};

}  // namespace tandem::comm

#endif  // TANDEM_COMMON_RENDEZVOUS_STORE_H_
