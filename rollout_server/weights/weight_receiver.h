// WeightReceiver: takes one weight push into staging and hands it, whole or not at all, to the
// engine (stage 9). WeightService feeds it from the network, tests from memory.
//
// A push is Begin, chunks in any order, Commit. What is served changes only inside Commit; until
// then and after any failure the live weights stay. A delta push sends what changed since the live
// version; its digests are over the result as any push's are. A push may also arrive in the
// engine's own memory (ArrivingWeights): then no byte of it is held here, and what is verified are
// word sums (common/weights/digest.h), made where the bytes lie. Thread-safe: Commit verifies
// and packs without holding back the other calls or the decode steps. Memory: one copy of the model
// in Hugging Face layout from Reserve or the first Begin on: staging, and after a commit the base
// of the next delta.
#pragma once

#include <cstddef>
#include <cstdint>
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
#include "common/weights/digest.h"
#include "common/weights/host_tensor.h"
#include "rollout_server/weights/bucket_store.h"
#include "rollout_server/weights/staged_tensor.h"
#include "rollout_server/weights/weight_sink.h"

namespace tandem::rollout {

class WeightReceiver {
 public:
  struct Live {
    WeightVersion version;
    int64_t epoch = 0;    // under which it was committed; 0: loaded from the directory
    DigestMap digests;    // XXH3-128; of weights that arrived on the device as they were published
    DigestMap word_sums;  // made on the device, of those alone; else empty
  };
  struct CommitReport {
    Live live;
    // Deltas added and digests made, beside the decode steps; digests of dense tensors while the
    // rest was still coming.
    double verify_seconds = 0;
    double pack_seconds = 0;   // for the engine's kernels, likewise
    double pause_seconds = 0;  // no decode step could run
  };

  // What a delta push is over, and how each tensor of its manifest travels.
  struct Delta {
    WeightVersion base;
    std::vector<WireForm> forms;
  };

  // `tensors` is the full set the engine needs, in its order. `sink` must outlive this object.
  WeightReceiver(WeightSink* sink, std::vector<TensorSpec> tensors, Live initial);

  // Takes the memory of a push now, before the first one: a server without it is an error at its
  // start.
  //   RESOURCE_EXHAUSTED  there is none, with its size
  absl::Status Reserve() ABSL_LOCKS_EXCLUDED(mu_);

  // Versions may start anew; an update in progress is dropped.
  void StartEpoch(int64_t epoch) ABSL_LOCKS_EXCLUDED(mu_);

  // May a push arrive in the engine's own memory, sent by a group that works on `memory`?
  bool TakesOnDevice(Device memory) const { return sink_->arrival_memory() == memory; }

  // Starts a push; returns how many bytes of each tensor of the manifest it waits for. An update in
  // progress is dropped, so Begin may be retried.
  //   INVALID_ARGUMENT     version < 0; a tensor is missing, unknown, doubled, or of another dtype
  //                        or shape (named); a delta of more bytes than its tensor
  //   FAILED_PRECONDITION  version is not newer than the live one of this epoch; the delta's base
  //   is
  //                        not live, or its bytes are not held: push dense
  //   ABORTED              a commit is running
  absl::StatusOr<std::vector<int64_t>> Begin(WeightVersion version,
                                             const std::vector<TensorSpec>& manifest,
                                             const std::optional<Delta>& delta = std::nullopt)
      ABSL_LOCKS_EXCLUDED(mu_);
  // The same of one that arrives in the engine's own memory, dense. Errors also of
  // WeightSink::Arrive.
  absl::StatusOr<std::vector<int64_t>> BeginOnDevice(WeightVersion version,
                                                     const std::vector<TensorSpec>& manifest)
      ABSL_LOCKS_EXCLUDED(mu_);

  // Copies a chunk of tensor `index` of the manifest, encoded as Begin said. The same range may
  // come again. The chunk that completes a dense tensor also makes its digest, outside the lock.
  //   FAILED_PRECONDITION  no update of `version` is in progress, or it arrives on the device
  //   OUT_OF_RANGE         no such tensor, or the chunk ends past it
  absl::Status Receive(WeightVersion version, int32_t index, int64_t offset,
                       std::span<const std::byte> data) ABSL_LOCKS_EXCLUDED(mu_);

  // Where its buckets go, in the order of the manifest: to Receive, or on the device. This object
  // must outlive it; what comes for an update that was dropped meanwhile is never served.
  //   FAILED_PRECONDITION  no update of `version` is in progress
  absl::StatusOr<std::unique_ptr<BucketStore>> Buckets(WeightVersion version)
      ABSL_LOCKS_EXCLUDED(mu_);

  // Verifies every digest over staging, packs, installs; of an update that arrived on the device
  // `word_sums`, there. OK at once when `version` is live with the same digests, so a lost call may
  // be repeated. Blocks; not for gRPC threads.
  //   FAILED_PRECONDITION  no update of `version` is in progress
  //   DATA_LOSS            bytes are missing or a digest differs or is not given (tensor named)
  //   any code from the sink. After an error the update is dropped.
  absl::StatusOr<CommitReport> Commit(WeightVersion version, const DigestMap& digests,
                                      const DigestMap& word_sums = {}) ABSL_LOCKS_EXCLUDED(mu_);

  // Drops the update of `version`. False when there is none.
  bool Abort(WeightVersion version) ABSL_LOCKS_EXCLUDED(mu_);

  // As of now; a later commit makes another one. Cheap: every request asks.
  std::shared_ptr<const Live> live() const ABSL_LOCKS_EXCLUDED(mu_);
  WeightVersion staged_version() const ABSL_LOCKS_EXCLUDED(mu_);  // 0: none
  // What Begin of `version` returned. FAILED_PRECONDITION as Receive.
  absl::StatusOr<std::vector<int64_t>> StagedSizes(WeightVersion version) const
      ABSL_LOCKS_EXCLUDED(mu_);
  // The live version's bytes are held: a delta over it is taken.
  bool takes_delta() const ABSL_LOCKS_EXCLUDED(mu_);
  const std::vector<TensorSpec>& tensors() const { return tensors_; }

 private:
  struct Update {
    WeightVersion version;
    std::unique_ptr<ArrivingWeights> arriving;  // on the device; null: `tensors`, in host memory
    std::vector<StagedTensor> tensors;          // in manifest order; none on the device
    std::vector<size_t> places;                 // of each in the manifest, in tensors_
    std::vector<std::string> digests;           // of each; empty: not made yet
    double digest_seconds = 0;                  // of those made as they came
  };

  std::vector<int64_t> SizesOf(const Update& update) const;  // that travel, in manifest order
  absl::Status CheckBegin(WeightVersion version) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::StatusOr<std::vector<size_t>> MatchManifest(const std::vector<TensorSpec>& manifest) const;
  absl::Status CheckVersion(WeightVersion version) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::Status CheckDeltaForms(const std::vector<size_t>& places, const Delta& delta) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::Status Verify(Update& update, const DigestMap& digests) const;
  absl::Status VerifyOnDevice(Update& update, const DigestMap& word_sums) const;
  absl::StatusOr<std::unique_ptr<StagedWeights>> StageVerified(Update& update);
  absl::StatusOr<CommitReport> Install(Update& update, const DigestMap& digests,
                                       const DigestMap& word_sums);
  void DropUpdate() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void GiveBack(Update& update, bool committed) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  WeightSink* const sink_;
  const std::vector<TensorSpec> tensors_;
  const std::map<std::string, size_t> places_;  // tensor name -> index in tensors_

  mutable Mutex mu_;
  CondVar commit_ended_;
  int64_t epoch_ ABSL_GUARDED_BY(mu_) = 0;
  bool committed_in_epoch_ ABSL_GUARDED_BY(mu_) = true;    // the directory's weights are of epoch 0
  std::shared_ptr<const Live> live_ ABSL_GUARDED_BY(mu_);  // shared with who asked for it
  std::shared_ptr<Update> update_ ABSL_GUARDED_BY(mu_);    // null: none in progress
  bool committing_ ABSL_GUARDED_BY(mu_) = false;
  // By place; null before the first push, and while an update has them.
  std::vector<std::shared_ptr<TensorMemory>> held_ ABSL_GUARDED_BY(mu_);
  bool held_is_live_ ABSL_GUARDED_BY(mu_) = false;  // held_, or what the update gives back
};

}  // namespace tandem::rollout
