// Store: a key-value store of short texts for the processes of a job, held by one of them (c10d's
// TCPStore). Ranks meet and report their state through it.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace tandem::comm {

struct StoreConnection;  // in store_connection.h: the c10d objects

// Who may connect to a store, and to the members of groups made over it.
enum class Reach {
  kMachine,  // processes of this machine; everything listens on loopback
  kNetwork,
};

// Copies share the connection. Thread-safe. If the process that holds the store hangs without
// dying, callers hang too; a caller that must not hang asks from a thread that it can abandon.
class Store {
 public:
  // Listens on `port` (0: any free port) of 127.0.0.1 or of all interfaces, and connects to itself.
  // The store lives as long as this object and its copies.
  //   UNAVAILABLE  the port is taken or not permitted
  static absl::StatusOr<Store> Host(int port, Reach reach);

  // Retries until `deadline` from now.
  //   DEADLINE_EXCEEDED  nobody listens there
  static absl::StatusOr<Store> Connect(const std::string& host, int port, absl::Duration deadline);

  // A view of the store in which all names are below `prefix`.
  Store Under(const std::string& prefix) const;

  int port() const;

  // Errors of all methods below:
  //   UNAVAILABLE  the process that holds the store is gone

  // The reach that the store was hosted with.
  absl::StatusOr<Reach> GetReach() const;

  absl::Status Set(const std::string& name, const std::string& value) const;

  // Waits until the name is set.
  //   DEADLINE_EXCEEDED  it was not
  absl::StatusOr<std::string> Get(const std::string& name, absl::Duration deadline) const;

  absl::StatusOr<bool> Has(const std::string& name) const;

  // Sets the name if it is not set, and returns its value.
  absl::StatusOr<std::string> SetOnce(const std::string& name, const std::string& value) const;

  // Adds to the counter of that name, which starts at 0, and returns what it is now. All who add to
  // one counter get different values.
  absl::StatusOr<int64_t> Add(const std::string& name, int64_t amount) const;

  // Removes the value or counter, so that a long job leaves nothing behind. OK where it is not
  // there.
  absl::Status Delete(const std::string& name) const;

  const StoreConnection& connection() const { return *connection_; }

 private:
  explicit Store(std::shared_ptr<const StoreConnection> connection)
      : connection_(std::move(connection)) {}

  std::shared_ptr<const StoreConnection> connection_;
};

}  // namespace tandem::comm
