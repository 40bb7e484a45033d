// Ranks as threads of this process, connected by a real store and real Gloo connections.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "common/comm/collective.h"

namespace tandem::testing {

using Collectives = std::vector<std::unique_ptr<comm::Collective>>;

// Runs body(thread) on each of `count` threads and returns their results, by number.
inline std::vector<absl::Status> OnThreads(int count,
                                           const std::function<absl::Status(int)>& body) {
  std::vector<absl::Status> statuses(static_cast<size_t>(count));
  std::vector<std::thread> threads;
  for (int i = 0; i < count; ++i) {
    threads.emplace_back([&, i] { statuses[static_cast<size_t>(i)] = body(i); });
  }
  for (std::thread& thread : threads) thread.join();
  return statuses;
}

// Runs body(collectives) on each of `num_ranks` threads, which share `num_collectives` collectives,
// and returns their results, by rank.
inline std::vector<absl::Status> OnRanks(
    int num_ranks, size_t num_collectives,
    const std::function<absl::Status(const Collectives&)>& body) {
  const auto store = comm::Store::Host(0, comm::Reach::kMachine).value();
  return OnThreads(num_ranks, [&](int rank) -> absl::Status {
    comm::GroupOptions group{.name = "train", .rank = rank, .deadline = absl::Seconds(60)};
    for (int r = 0; r < num_ranks; ++r) group.members.push_back("thread:" + std::to_string(r));
    auto connection = comm::Store::Connect("127.0.0.1", store.port(), absl::Seconds(10));
    if (!connection.ok()) return connection.status();
    Collectives collectives;
    while (collectives.size() < num_collectives) {
      auto joined = comm::Collective::Make(comm::Backend::kGloo, *connection, group);
      if (!joined.ok()) return joined.status();
      collectives.push_back(*std::move(joined));
      group.name += "'";
    }
    return body(collectives);
  });
}

// The same with one group.
inline std::vector<absl::Status> OnRanks(
    int num_ranks, const std::function<absl::Status(comm::Collective&)>& body) {
  return OnRanks(num_ranks, 1,
                 [&](const Collectives& collectives) { return body(*collectives[0]); });
}

}  // namespace tandem::testing
