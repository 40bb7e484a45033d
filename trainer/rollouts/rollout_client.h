// RolloutClient: asks rollout servers for groups and hands the finished ones back (stages 1-3).
// Many servers, several groups in flight at each, every call with a deadline. A call that fails is
// made again: at the same server it joins the running group, at another it starts anew with the
// same seed. A group that is bound to one server (deterministic runs) waits for that server. A call
// that a busy server refused (common/rpc/refusal.h) is made again after the time that the server
// names, as often as needed: such a refusal is no failure. A group that is too large is given up at
// once.
//
// A server is `lost` (a call failed), then reachable but `behind` (its weights are not proven),
// then `ready`. Groups go to ready servers only. The trainer pushes weights to those that are
// behind and calls MarkReady; a lost server that comes back with the weights it was marked with is
// ready at once. A server that answers while its engine hangs stays lost until the engine moves,
// even if its weights are the right ones.
//
// Servers may be added and retired while it runs (delivery.h); each keeps its number
// (server_pool.h).
//
// Used by trainer.cc and evaluation.cc. Thread-safe. Threads: groups_in_flight per server.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/observe/tracer.h"
#include "proto/rollout.pb.h"
#include "trainer/environments/episode.h"
#include "trainer/metrics/trainer_metrics.h"
#include "trainer/rollouts/rollout_client_options.h"
#include "trainer/rollouts/server_pool.h"
#include "trainer/rollouts/server_scorer.h"

namespace tandem::trainer {

class TurnPlayer;

// Any server may run the group.
inline constexpr int kAnyServer = -1;

struct FinishedGroup {
  int64_t group_id = 0;
  absl::Status status;  // not OK: given up after max_attempts, or impossible, or too large
  std::vector<rollout::v1::Completion> completions;  // by index, checked (group_check.h)
  std::optional<rollout::v1::Completion> baseline;   // the greedy one, where it was asked for
  rollout::v1::GroupDone done;
  int server = kAnyServer;
  std::optional<ScoredByServer> replay;  // what DrawnHook made of it
  Episodes episodes;                     // empty without a TurnPlayer
};

struct ServerEvent {
  std::string kind;  // server_retired, server_lost, server_hung, server_back, server_ready
  std::string address;
  std::string message;
};

class RolloutClient {
 public:
  // Starts the threads; all servers begin as lost and are probed at once. A server that `accept`
  // refuses ends the run with that error. Called without a lock, from several threads.
  using Accept = std::function<absl::Status(const rollout::v1::GetInfoResponse&)>;
  // `drawn` sees each group that was drawn, on the thread that asked for it and right after, before
  // Next gives it out.
  using DrawnHook = std::function<void(const rollout::v1::GenerateGroupRequest&, FinishedGroup*)>;
  // `pool` must outlive this object.
  RolloutClient(ServerPool* pool, const std::string& run_id, const RolloutClientOptions& options,
                Accept accept = {}, DrawnHook drawn = {});
  ~RolloutClient();  // cancels what is in flight and joins; players must still answer, or have ended
  RolloutClient(const RolloutClient&) = delete;
  RolloutClient& operator=(const RolloutClient&) = delete;

  // Makes the server at `address` one of the pool and of this client, lost until it answers. One
  // that was retired is taken back under its number.
  void AddServer(const std::string& address);

  // `server` is no longer part of the run: groups that run there go on, and once it is lost nobody
  // asks for it.
  void Retire(int server);

  // Queues a group. With `server`, only that one may run it (deterministic runs). Each call made
  // for it is a span under `trace`, and names itself to the server. Admission batches are submitted
  // in the order of their ids. If a server has started over since a batch was begun there, groups
  // of that batch are asked for without it. `player` answers the turns, where `request` has some.
  void Submit(rollout::v1::GenerateGroupRequest request, int server = kAnyServer,
              const TraceParent& trace = {}, std::shared_ptr<TurnPlayer> player = nullptr);

  // The next finished group, or none within `timeout`.
  //   UNAVAILABLE          no server was ready for server_patience_seconds, or none came for
  //                        start_patience_seconds (last error of each)
  //   FAILED_PRECONDITION  another run owns a server
  absl::StatusOr<std::optional<FinishedGroup>> Next(std::chrono::milliseconds timeout);

  // Lets the call of Next that waits now, or else the next one, return without a group: something
  // else is ready that its caller waits for.
  void Wake();

  // Servers that answer but whose weights are not proven. Waits up to `timeout` for the first.
  std::vector<int> Behind(std::chrono::milliseconds timeout);

  // The trainer proved that `server` runs `version` of `epoch`.
  void MarkReady(int server, int64_t epoch, int64_t version);
  void MarkLost(int server, const std::string& reason);

  // A call of somebody else to `server` failed in a way that is no fault of the call
  // (call_end.h): it is lost until it answers. What proved its weights proves them still.
  void Doubt(int server, const std::string& reason);

  // A new version is about to be pushed: what a lost server ran is no proof any more.
  void ExpireProofs();

  // Ready or not, waiting time left included: the errors of Next, or OK.
  absl::Status Health();

  bool IsReady(int server) const;
  const std::string& address(int server) const;
  int num_servers() const;  // retired ones included
  bool IsRetired(int server) const;
  bool IsLost(int server) const;
  // "ADDRESS: last error" of those that are lost and not retired; empty when none is.
  std::string Missing() const;

  // As of the last answer of each server; empty before the first.
  std::optional<rollout::v1::GetInfoResponse> info(int server) const;

  std::vector<ServerEvent> TakeEvents();
  // Without groups_waiting, which is not known here. Hung servers are lost ones that answer while
  // their engines do not move.
  TrainerMetrics::Queues queues() const;

  // Drops these groups and cancels those in flight, whose servers then stop sampling them; their
  // results never come. Ids that are not outstanding are ignored.
  void Cancel(std::span<const int64_t> group_ids);
  void CancelAll();  // likewise, of all groups

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace tandem::trainer
