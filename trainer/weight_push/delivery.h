// Delivery: keeps every rollout server on proven weights (stage 9 as a policy over WeightPublisher
// and RolloutClient). A server gets groups only while it is known to run the version published
// last. Used by trainer.cc, from its thread.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "common/base/weight_version.h"
#include "common/process/stop_signal.h"
#include "trainer/metrics/metrics_line.h"
#include "trainer/rollouts/rollout_client.h"
#include "trainer/weight_push/weight_cast.h"
#include "trainer/weight_push/weight_publisher.h"

namespace tandem::trainer {

// What one version cost, over all servers.
struct PushTotals {
  int64_t bytes = 0;        // as they travelled to each
  int64_t dense_bytes = 0;  // as they would have without deltas
  double seconds = 0;       // of the slowest server
  double pause_ms = 0;      // of the slowest server
};

// Writes an event of the run.
using EventSink =
    std::function<absl::Status(const std::string& kind, const std::string& message, JsonFields)>;

class Delivery {
 public:
  // All must outlive this object. Servers are given weights `hold_back` versions older than those
  // handed to Publish; for the first so many, the first.
  Delivery(RolloutClient* client, WeightPublisher* publisher, int64_t hold_back, EventSink events)
      : client_(client), publisher_(publisher), hold_back_(hold_back), events_(std::move(events)) {}

  // Waits until every server answers, or `patience_seconds` passed and some do, with warnings of
  // who is missing at growing distances. Calls `tick` (servers may be added) while it waits.
  //   UNAVAILABLE          none (or, with need_all, not all) came
  //   FAILED_PRECONDITION  another run owns a server
  absl::Status WaitForServers(double patience_seconds, bool need_all, const StopSignal& stop,
                              const std::function<void()>& tick);
  // Of the weights of the first server that tells.
  absl::StatusOr<DType> ServerDType();

  // Takes `cast` as the weights of `version`, and sends those due to every server that is ready or
  // behind. A server that fails is taken out of rotation (event push_failed).
  absl::StatusOr<PushTotals> Publish(WeightVersion version, CastWeights cast);

  // Brings servers that came (back) meanwhile to the version published last. Quick when there are
  // none.
  //   FAILED_PRECONDITION  another run owns a server
  absl::Status Sync();

  // Proof before training: every ready server runs the published digests.
  //   DATA_LOSS  one does not: names it, the versions and the tensors
  absl::Status Verify();

  // Passes the client's server events on to the run's.
  absl::Status ForwardEvents();

 private:
  absl::Status ClaimBehind(std::vector<int>* claimed);
  absl::Status Settle(const ServerPush& push, PushTotals* totals);

  struct HeldWeights {
    WeightVersion version;
    CastWeights cast;
  };

  RolloutClient* const client_;
  WeightPublisher* const publisher_;
  const int64_t hold_back_;
  const EventSink events_;
  std::deque<HeldWeights>
      held_;  // oldest first; the front is due when there are hold_back_ behind it
  bool published_ = false;
  CastNumbers cast_;  // of the version published last
};

// push/ of metrics.jsonl.
void AddPushNumbers(WeightVersion version, const CastNumbers& cast, const PushTotals& totals,
                    MetricsLine* line);

}  // namespace tandem::trainer
