// ServerLookup: the rollout servers that trainer.servers means now. An entry is HOST:PORT, one
// server for the whole run, vllm://HOST:PORT, a server of vLLM (trainer/foreign), or dns:NAME:PORT, a server at every address the name has: looked up
// again while the run goes on, so that servers may come and go. Used by Delivery. Thread-safe.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace tandem::trainer {

// The numeric addresses of a host name, IPv6 ones in brackets.
//   NOT_FOUND    the name has none (yet)
//   UNAVAILABLE  who knows could not be asked
using Resolver = std::function<absl::StatusOr<std::vector<std::string>>(const std::string& host)>;
absl::StatusOr<std::vector<std::string>> ResolveHost(const std::string& host);

// Whether the entries of trainer.servers are well formed.
//   INVALID_ARGUMENT  not HOST:PORT, vllm://HOST:PORT or dns:NAME:PORT (named)
absl::Status CheckServerEntries(const std::vector<std::string>& entries);

// HOST:PORT of an entry that names a foreign server; empty for Tandem's own.
std::string ForeignHostPort(const std::string& entry);

// Whether servers may come and go.
bool HasNames(const std::vector<std::string>& entries);

class ServerLookup {
 public:
  // Looks names up at once, from a thread, and again each `period`.
  ServerLookup(const std::vector<std::string>& entries, std::chrono::milliseconds period,
               Resolver resolver = ResolveHost);
  ~ServerLookup();
  ServerLookup(const ServerLookup&) = delete;
  ServerLookup& operator=(const ServerLookup&) = delete;

  // HOST:PORT of each, in the order of the entries and sorted within one, none twice. A name that
  // cannot be asked about keeps what it had; one that has no address has none.
  std::vector<std::string> Addresses() const;

  // Names that have no address now, with the reason; empty when all have.
  std::string Problems() const;

 private:
  struct Impl;
  const std::unique_ptr<Impl> impl_;
};

}  // namespace tandem::trainer
