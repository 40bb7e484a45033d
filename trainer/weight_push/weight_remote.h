// WeightRemote: one rollout server's weight service, as calls with deadlines (stage 9). Used by
// WeightPublisher and PushGroup. Free of gRPC in its header. Thread-safe.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/base/weight_version.h"
#include "common/comm/push_member.h"
#include "common/rpc/caller_channel.h"
#include "common/weights/digest.h"
#include "common/weights/host_tensor.h"
#include "common/weights/tensor_delta.h"
#include "trainer/weight_push/adapter_push.h"
#include "trainer/weight_push/bucket_source.h"

namespace tandem::trainer {

// The live weights of a server, as it reports them.
struct RemoteWeights {
  WeightVersion version;
  int64_t epoch = 0;
  DigestMap digests;
  DigestMap word_sums;       // of weights that arrived on the device; else empty
  bool takes_delta = false;  // over that version
  DType dtype = DType::kF32;
  std::string stored_formats;  // PlanText of what it takes as stored rows; empty: nothing
  // Where it is an adapter, `digests` are its; of the weights that it made, and what it did to them:
  DigestMap merged;
  std::vector<AppliedModule> applied;
};

// The bytes of one tensor as they are sent; `owner` keeps them alive.
struct WireBytes {
  std::span<const std::byte> bytes;
  std::shared_ptr<const void> owner;
};

// One version as it travels: its tensors, or what changed in them since `base`.
struct WeightPayload {
  WeightVersion version;
  std::span<const TensorSource> tensors;     // of the version: the manifest
  std::optional<WeightVersion> base;         // none: all dense
  std::span<const TensorDelta> deltas = {};  // with a base: of each tensor
  BucketSource* on_device = nullptr;         // buckets made there, for servers that take them there
  const AdapterPush* adapter = nullptr;      // the tensors are an adapter's

  // The bytes that are sent for tensor `i`. Errors of reading it.
  absl::StatusOr<WireBytes> wire(size_t i) const;
  int64_t wire_size(size_t i) const;
  std::vector<int64_t> wire_sizes() const;
};

struct CommitReply {
  RemoteWeights live;
  double verify_ms = 0, pack_ms = 0;
  double pause_ms = 0;  // how long no decode step could run
};

class WeightRemote {
 public:
  // Calls go over `channel`, which must outlive this object. `timeout`: of a call that moves or
  // makes weights. Does not wait for a connection.
  WeightRemote(rpc::CallerChannel* channel, const std::string& run_id, absl::Duration timeout);
  ~WeightRemote();
  WeightRemote(const WeightRemote&) = delete;
  WeightRemote& operator=(const WeightRemote&) = delete;

  const std::string& address() const;

  // Sent with every call from now on (common/observe/tracer.h); empty: none. Thread-safe.
  void SetTraceparent(const std::string& header);

  // Errors of the calls below have the code that the server answered with, and "CALL at ADDRESS: "
  // before its message.

  absl::StatusOr<RemoteWeights> Info();
  absl::StatusOr<std::string> Owner();
  // The highest epoch under which the server has had weights or an owner; 0 if it does not answer.
  int64_t HighestEpoch();
  absl::Status InitTransfer(int64_t epoch, absl::Duration lease, bool release);
  absl::Status Begin(int64_t epoch, const WeightPayload& payload);
  // Sends the payload in chunks of `chunk_bytes`, and adds the bytes sent to `num_bytes`.
  absl::Status SendChunks(const WeightPayload& payload, int64_t chunk_bytes, int64_t* num_bytes);
  // Returns whether pushes through the group may arrive in the engine's own memory.
  absl::StatusOr<bool> JoinPushGroup(const comm::PushSeatOffer& offer);
  absl::Status ReceiveBuckets(int64_t epoch, int64_t membership, WeightVersion version,
                              int64_t bucket_bytes);
  // `word_sums`: those of a version that arrived on the device.
  absl::StatusOr<CommitReply> Commit(int64_t epoch, WeightVersion version, const DigestMap& digests,
                                     const DigestMap& word_sums = {});
  // A failure is logged.
  void Abort(WeightVersion version);

 private:
  struct Impl;
  const std::unique_ptr<Impl> impl_;
};

}  // namespace tandem::trainer
