// WeightPublisher: sends one weight version to every rollout server and proves that it is what they
// run (stage 9): begin, bytes, commit, and the digests of the live weights in the reply. The
// trainer trains on nothing from a server that Verify does not clear.
//
// The bytes go by gRPC chunks to each server, or once, in broadcasts of a group, to all of them;
// they are whole tensors, or what changed since the version before where a server runs that.
// Whatever goes wrong with a group, its servers get the stream in the same push.
//
// Owns the claim on the servers (run id, epoch, lease), renews it from a thread, and gives it back
// at the end. Keeps the tensors of the last version, so that a server that comes late can get them.
// Publish, PushTo, Verify: from one thread. Memory: the deltas; the weights are read when they are
// sent, tensor by tensor, and where they are kept is up to who made the sources.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/weight_version.h"
#include "common/options/options.h"
#include "common/weights/digest.h"
#include "common/weights/host_tensor.h"
#include "trainer/rollouts/server_pool.h"
#include "trainer/weight_push/adapter_push.h"
#include "trainer/weight_push/push_group.h"

namespace tandem::trainer {

enum class PushTransport { kStream, kCollective };

// Where weights become those of servers that quantise: on arrival, or before they are sent, which
// halves or quarters the bytes of a push.
enum class QuantiseOn { kTrainer, kServer };

struct WeightPublisherOptions {
  PushTransport transport = PushTransport::kStream;
  bool delta = true;  // send what changed, where that is less
  QuantiseOn quantise_on = QuantiseOn::kTrainer;
  double timeout_seconds = 120;  // one call of the life cycle
  double lease_seconds = 60;
  int64_t chunk_bytes = 1 << 21;
  int64_t max_attempts = 3;             // of one push to one server
  int64_t hold_back_versions = 0;       // servers run weights this much older than the trainer's
  int64_t debug_skip_push_at_step = 0;  // fault: claim delivery of this version without sending it
  PushGroupOptions group;               // of kCollective
};
void BindOptions(OptionBinder& binder, WeightPublisherOptions& options);

// Has this build what the options ask for?
//   FAILED_PRECONDITION  it has no NCCL
absl::Status CheckBuild(const WeightPublisherOptions& options);

// One server's part of a push.
struct ServerPush {
  int server = 0;
  absl::Status status;
  bool skipped = false;     // the server had these very weights
  bool over_group = false;  // else by the stream
  bool on_device = false;   // from memory of a device into memory of a device
  bool is_delta = false;
  int64_t bytes = 0;                  // as they travelled
  double seconds = 0;                 // of the push
  double send_seconds = 0;            // of it: the bytes on their way
  double verify_ms = 0;               // of it: deltas added and digests made on the server
  double pack_ms = 0;                 // of it: weights packed there for its kernels
  double pause_ms = 0;                // how long no decode step could run
  int64_t live_epoch = 0;             // as the server reports it
  std::string digest;                 // CombinedDigest of its live weights
  std::optional<CastNumbers> effect;  // of an adapter
};

// The error of a claim that a server refused for `denied_seconds` without a break. A process of the
// run that died with its secret holds the server until its lease ends: PERMISSION_DENIED, try
// again. A holder that outlives such a lease is alive: FAILED_PRECONDITION. Other errors are
// returned as they are.
absl::Status JudgeRefusedClaim(const absl::Status& refusal, double denied_seconds,
                               double lease_seconds);

class WeightPublisher {
 public:
  // Servers are named by their numbers in `pool`, which must outlive this object.
  WeightPublisher(const ServerPool* pool, const std::string& run_id,
                  const WeightPublisherOptions& options);
  ~WeightPublisher();  // as Release
  WeightPublisher(const WeightPublisher&) = delete;
  WeightPublisher& operator=(const WeightPublisher&) = delete;

  // `server` is gone: its lease is no longer renewed, until it is claimed again.
  void Forget(int server);

  // The dtype this server's weights have, and what it takes as stored rows. Errors of the call.
  absl::StatusOr<DType> ServerDType(int server);
  absl::StatusOr<std::string> StoredFormats(int server);

  // Makes the run the owner of `server` under the run's epoch: the first claim takes one above the
  // highest epoch seen, later ones the same.
  //   FAILED_PRECONDITION  another run owns it (named)
  //   PERMISSION_DENIED    this run owns it by another secret: of a process that died without
  //                        leaving it, so that the lease ends it. Past a lease of such refusals
  //                        FAILED_PRECONDITION, since somebody renews it
  absl::Status Claim(int server);

  // Takes `tensors` as the weights of `version` from here on, reads each of them once for its
  // digest (and those before, for what changed) and again for every push that sends it whole; from
  // several threads. Sends nothing. Errors of reading: the weights before stay.
  // `on_device`: the same bytes, made on a device; null: they are not. The next Publish may send
  // from there, once: until it returns the masters must stay as they are. `adapter`: the tensors are
  // an adapter's, and a server's part of a push also fails with DATA_LOSS of CheckApplied.
  absl::Status SetWeights(WeightVersion version, std::vector<TensorSource> tensors,
                          std::shared_ptr<BucketSource> on_device = nullptr,
                          std::shared_ptr<const AdapterPush> adapter = nullptr);

  // Sends the weights set last to a claimed server, unless it has them already, and checks the
  // digests it then runs. A failed attempt is aborted and made again.
  ServerPush PushTo(int server);

  // PushTo for several servers side by side, or through the group. Under debug_skip_push_at_step,
  // reports success without sending anything.
  std::vector<ServerPush> Publish(const std::vector<int>& servers);

  // Does `server` run the weights set last?
  //   DATA_LOSS    it runs others, though it is still ours: delivery is not proven. Names the
  //                version, the digests and the first tensors that differ
  //   UNAVAILABLE  it does not answer, or lost its claim (it was started anew)
  absl::Status Verify(int server);

  // Sent with every call from now on, so that servers' spans have their place; empty: none.
  void SetTraceparent(const std::string& header);

  void Release();  // gives all servers back; idempotent

  WeightVersion version() const;
  const DigestMap& digests() const;  // of the weights set last
  // Digests of what servers serve: the same, or for an adapter those of the merged weights, as the
  // servers made them; empty before one did.
  DigestMap served_digests() const;
  int64_t num_bytes() const;  // of the weights set last, dense
  int64_t epoch() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace tandem::trainer
