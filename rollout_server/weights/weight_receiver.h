// WeightReceiver: takes a weight push (weight sync) into staging and installs it in the engine,
// whole or not at all (stage 9). WeightService feeds it from the network, tests from memory.
//
// A push is Begin, chunks in any order, Commit. Invariant: the served weights change only inside
// Commit, after every digest was verified; before that and after any failure the live weights stay.
// A delta push sends what changed since the live version; its digests are those of the result, as
// with any push. A push may also arrive in memory of the engine's device (ArrivingWeights): then no
// byte of it is held here, and word sums (common/weights/digest.h) are verified, which are computed
// there. A push may bring an adapter (AdapterUpdate): its digests are those of the adapter, and those
// of the merged weights are computed here.
//
// Thread-safe: Commit verifies and packs without blocking other calls or decode steps. Memory: one
// copy of the model from Reserve or the first Begin on: staging, then the base of the next delta.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/mutex.h"
#include "common/base/weight_version.h"
#include "common/model/numerics.h"
#include "common/weights/digest.h"
#include "common/weights/host_tensor.h"
#include "rollout_server/engine/forward/staged_weights.h"
#include "rollout_server/weights/adapter_update.h"
#include "rollout_server/weights/push_seat.h"
#include "rollout_server/weights/staged_tensor.h"
#include "rollout_server/weights/weight_sink.h"

namespace tandem::rollout {

class WeightReceiver {
 public:
  struct Live {
    WeightVersion version;
    int64_t epoch = 0;    // under which it was committed; 0: loaded from the directory
    DigestMap digests;    // XXH3-128; those published, for weights that arrived on the device
    DigestMap word_sums;  // of weights that arrived on the device, computed there; else empty
    DigestMap served;     // StagedWeights::served_digests
    // If an adapter made the weights: their digests, and what it did to each of them.
    DigestMap merged;
    std::vector<ModuleEffect> effects;
  };
  struct CommitReport {
    Live live;
    double verify_seconds = 0;  // to add deltas and compute digests, beside the decode steps
    double pack_seconds = 0;    // to pack for the engine's kernels, beside the decode steps
    double pause_seconds = 0;   // while no decode step could run
  };

  // The base of a delta push, and the wire form of each tensor of its manifest.
  struct Delta {
    WeightVersion base;
    std::vector<WireForm> forms;
  };

  // The weights that `initial` stands for, again, in the order and dtype of `tensors`: what adapters
  // are merged into. Read when the first adapter comes.
  using LoadBase = std::function<absl::StatusOr<std::vector<HostTensor>>()>;

  // `tensors` is the full set the engine needs, in its order; `stored`, unless it is empty, the same
  // with quantised matrices as stored rows (StoredTensors), which a push may bring instead. `sink`
  // must outlive this object. Without `load_base`, no adapter is taken.
  WeightReceiver(WeightSink* sink, std::vector<TensorSpec> tensors, Live initial,
                 LoadBase load_base = nullptr, std::vector<TensorSpec> stored = {});

  // Allocates the memory of a push before the first one.
  //   RESOURCE_EXHAUSTED  there is not enough (with the size)
  absl::Status Reserve() ABSL_LOCKS_EXCLUDED(mu_);

  // From now on versions may start at any number. Drops an update in progress.
  void StartEpoch(int64_t epoch) ABSL_LOCKS_EXCLUDED(mu_);

  // May a push arrive in memory of the engine's device, from a process group that works on
  // `memory`?
  bool TakesOnDevice(Device memory) const { return sink_->arrival_memory() == memory; }

  // Starts a push; returns how many bytes it expects for each tensor of the manifest. Drops an
  // update in progress, so Begin may be retried. `on_device`: a dense push that arrives in memory
  // of the engine's device.
  //   INVALID_ARGUMENT     version < 0; a tensor is missing, unknown, doubled, or of another dtype
  //                        or shape (named); a delta of more bytes than its tensor
  //   FAILED_PRECONDITION  version is not newer than the live one of this epoch; the delta's base
  //                        is not live, or its bytes are not held: push dense
  //   ABORTED              a commit is running
  //   any code from WeightSink::Arrive, `on_device`
  absl::StatusOr<std::vector<int64_t>> Begin(WeightVersion version,
                                             const std::vector<TensorSpec>& manifest,
                                             const std::optional<Delta>& delta = std::nullopt,
                                             bool on_device = false) ABSL_LOCKS_EXCLUDED(mu_);

  // Starts a push of an adapter; returns the bytes of its tensors. Drops an update in progress.
  //   INVALID_ARGUMENT     version < 0; errors of AdapterUpdate::Create; the adapter is of another base
  //                        than this server loaded
  //   FAILED_PRECONDITION  as Begin; a server that takes none; the model's files changed
  //   ABORTED              a commit is running
  //   any code from LoadBase
  absl::StatusOr<std::vector<int64_t>> BeginAdapter(WeightVersion version,
                                                    const AdapterHeader& header,
                                                    std::vector<TensorSpec> manifest)
      ABSL_LOCKS_EXCLUDED(mu_);

  // Copies a chunk of tensor `index` of the manifest, in the wire form that Begin was given. A
  // range may be sent again. The call that completes a dense tensor also computes its digest,
  // without the lock.
  //   FAILED_PRECONDITION  no update of `version` is in progress, or it arrives on the device
  //   OUT_OF_RANGE         no such tensor, or the chunk ends past it
  absl::Status Receive(WeightVersion version, int32_t index, int64_t offset,
                       std::span<const std::byte> data) ABSL_LOCKS_EXCLUDED(mu_);

  // The store for the update's buckets, with tensors in the order of the manifest: it calls
  // Receive, or writes on the device. This object must outlive it. Buckets of an update that was
  // dropped meanwhile are never served.
  //   FAILED_PRECONDITION  no update of `version` is in progress
  absl::StatusOr<std::unique_ptr<BucketStore>> Buckets(WeightVersion version)
      ABSL_LOCKS_EXCLUDED(mu_);

  // Verifies the digest of every staged tensor (for an update that arrived on the device: its
  // `word_sums`), packs and installs. OK at once when `version` is live with the same digests, so a
  // lost call may be repeated. Blocks; not for gRPC threads.
  //   FAILED_PRECONDITION  no update of `version` is in progress
  //   DATA_LOSS            bytes are missing or a digest differs or is not given (tensor named)
  //   any code from the sink. After an error the update is dropped.
  absl::StatusOr<CommitReport> Commit(WeightVersion version, const DigestMap& digests,
                                      const DigestMap& word_sums = {}) ABSL_LOCKS_EXCLUDED(mu_);

  // Drops the update of `version`. False when there is none.
  bool Abort(WeightVersion version) ABSL_LOCKS_EXCLUDED(mu_);

  // The live version as of now; a later commit makes another object. Cheap.
  std::shared_ptr<const Live> live() const ABSL_LOCKS_EXCLUDED(mu_);
  WeightVersion staged_version() const ABSL_LOCKS_EXCLUDED(mu_);  // 0: none
  // What Begin of `version` returned. FAILED_PRECONDITION as Receive.
  absl::StatusOr<std::vector<int64_t>> StagedSizes(WeightVersion version) const
      ABSL_LOCKS_EXCLUDED(mu_);
  // Are the live version's bytes held, so that a delta can be applied to them?
  bool takes_delta() const ABSL_LOCKS_EXCLUDED(mu_);
  const std::vector<TensorSpec>& tensors() const { return tensors_; }

 private:
  struct Update {
    WeightVersion version;
    std::unique_ptr<ArrivingWeights> arriving;  // on the device; null: `tensors`, in host memory
    std::unique_ptr<AdapterUpdate> adapter;     // then `tensors` are its, and `places` is empty
    std::vector<std::shared_ptr<TensorMemory>> merge_into;  // of each of its modules
    std::vector<StagedTensor> tensors;                      // in manifest order; none on the device
    std::vector<size_t> places;        // index in tensors_ of each tensor of the manifest
    std::vector<std::string> digests;  // of each; empty: not computed yet
    double digest_seconds = 0;         // for digests computed while tensors arrived
  };

  std::vector<int64_t> SizesOf(const Update& update) const;  // on the wire, in manifest order
  absl::Status CheckBegin(WeightVersion version) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  const std::vector<TensorSpec>& Specs(bool stored) const { return stored ? stored_ : tensors_; }
  absl::StatusOr<std::vector<size_t>> MatchManifest(const std::vector<TensorSpec>& manifest,
                                                    bool stored) const;
  absl::Status CheckDeltaForms(const std::vector<size_t>& places, const Delta& delta,
                               bool stored) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void HoldAs(bool stored) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);  // lets go of bytes of the other set
  absl::Status Verify(Update& update, const DigestMap& digests) const;
  absl::Status VerifyOnDevice(Update& update, const DigestMap& word_sums) const;
  absl::StatusOr<std::unique_ptr<StagedWeights>> StageVerified(Update& update, Live* live);
  absl::Status CheckBase(const AdapterHeader& header) ABSL_LOCKS_EXCLUDED(mu_);
  absl::StatusOr<CommitReport> Install(Update& update, const DigestMap& digests,
                                       const DigestMap& word_sums);
  void DropUpdate() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void GiveBack(Update& update, bool committed) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  WeightSink* const sink_;
  const std::vector<TensorSpec> tensors_, stored_;
  const std::map<std::string, size_t> places_;  // tensor name -> index in tensors_
  const LoadBase load_base_;
  const DigestMap base_digests_;  // of the weights that the server loaded

  mutable Mutex mu_;
  CondVar commit_ended_;
  int64_t epoch_ ABSL_GUARDED_BY(mu_) = 0;
  bool committed_in_epoch_ ABSL_GUARDED_BY(mu_) = true;    // the directory's weights are of epoch 0
  std::shared_ptr<const Live> live_ ABSL_GUARDED_BY(mu_);  // shared with callers of live()
  std::shared_ptr<Update> update_ ABSL_GUARDED_BY(mu_);    // null: none in progress
  bool committing_ ABSL_GUARDED_BY(mu_) = false;
  // In the order of tensors_; null before the first push, and while an update has them.
  std::vector<std::shared_ptr<TensorMemory>> held_ ABSL_GUARDED_BY(mu_);
  bool held_is_live_ ABSL_GUARDED_BY(mu_) = false;  // held_, or what the update gives back
  bool held_stored_ ABSL_GUARDED_BY(mu_) = false;   // they are of stored_
  std::shared_ptr<const std::vector<HostTensor>> base_ ABSL_GUARDED_BY(mu_);  // null: not read yet
};

}  // namespace tandem::rollout
