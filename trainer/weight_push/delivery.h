// Delivery: keeps every rollout server of the run on proven weights (stage 9 as a policy over
// WeightPublisher and RolloutClient). A server gets groups only while it is known to run the
// version published last. Servers that trainer.servers names anew are taken in, and those that it
// no longer names are retired and given back once they are lost. Used by trainer.cc, from its
// thread.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "common/base/weight_version.h"
#include "common/model/model_config.h"
#include "common/model/quantisation_plan.h"
#include "common/process/stop_signal.h"
#include "trainer/metrics/metrics_line.h"
#include "trainer/rollouts/rollout_client.h"
#include "trainer/rollouts/server_lookup.h"
#include "trainer/weight_push/weight_cast.h"
#include "trainer/weight_push/weight_publisher.h"

namespace tandem::trainer {

// The cost of pushing one version to all servers.
struct PushTotals {
  int64_t bytes = 0;                  // as they travelled to each
  int64_t dense_bytes = 0;            // as they would have without deltas
  double seconds = 0;                 // of the slowest server
  double pause_ms = 0;                // of the slowest server
  std::optional<CastNumbers> effect;  // of an adapter, as a server reports it
};

class Delivery {
 public:
  // Pointers must outlive this object. Servers get weights `hold_back` versions older than those
  // handed to Publish; during the first `hold_back` versions they get the first.
  Delivery(const ServerLookup* lookup, RolloutClient* client, WeightPublisher* publisher,
           int64_t hold_back, EventSink events)
      : lookup_(lookup),
        client_(client),
        publisher_(publisher),
        hold_back_(hold_back),
        events_(std::move(events)) {}

  // Waits until every server answers, or until `patience_seconds` have passed and some do. Warns at
  // growing distances of those that are missing.
  //   UNAVAILABLE          none (or, with need_all, not all) came
  //   FAILED_PRECONDITION  another run owns a server
  absl::Status WaitForServers(double patience_seconds, bool need_all, const StopSignal& stop);

  // Adds and retires servers as trainer.servers names them now. Quick; the changes are events.
  void UpdateServers();

  // The dtype of the weights of the first server that answers. Errors of the last call.
  absl::StatusOr<DType> ServerDType();

  // From the first Publish on, pushes quantised matrices as servers store them, if all servers that
  // answer now take the same. Returns their formats (PlanText); empty: they take none, or differ.
  //   INVALID_ARGUMENT  formats that the model does not take
  absl::StatusOr<std::string> QuantiseFor(const ModelConfig& config);

  // Takes `cast` as the weights of `version`, and sends those due to every server that is ready or
  // behind. A server that fails is taken out of rotation (event push_failed).
  //   INVALID_ARGUMENT  a server serves another model, and none took a version so far
  absl::StatusOr<PushTotals> Publish(WeightVersion version, CastWeights cast);

  // Pushes the version published last to servers that came or came back meanwhile. Quick when
  // there are none.
  //   FAILED_PRECONDITION  another run owns a server
  absl::Status Sync();

  // The proof before training that every ready server runs the published digests.
  //   DATA_LOSS  a server does not: names the server, the versions and the tensors
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

  const ServerLookup* const lookup_;
  RolloutClient* const client_;
  WeightPublisher* const publisher_;
  const int64_t hold_back_;
  std::optional<QuantisationPlan> stored_;  // pushes bring stored rows
  const EventSink events_;
  std::deque<HeldWeights> held_;  // oldest first; the front is due once hold_back_ stand behind it
  bool published_ = false;
  bool delivered_ = false;       // at least once, to any server
  CastNumbers cast_;             // of the version published last
  std::string lookup_problems_;  // as logged last
  std::set<int> leaving_;        // retired servers that may still be at work
};

// push/ of metrics.jsonl.
void AddPushNumbers(WeightVersion version, const CastNumbers& cast, const PushTotals& totals,
                    MetricsLine* line);

}  // namespace tandem::trainer
