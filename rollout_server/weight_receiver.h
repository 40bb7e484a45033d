// WeightReceiver: takes one weight push into staging and hands it, whole or not at all, to the
// engine (arrow 9). WeightService feeds it from the network, tests from memory.
//
// A push is Begin, chunks in any order, Commit. What is served changes only inside Commit; until
// then and after any failure the live weights stay. A delta push sends what changed since the live
// version; its digests are over the result as any push's are. Thread-safe: Commit verifies and
// packs without holding back the other calls or the decode steps. Memory: one copy of the model in
// Hugging Face layout from Reserve or the first Begin on: staging, and after a commit the base of
// the next delta.
#ifndef TANDEM_ROLLOUT_SERVER_WEIGHT_RECEIVER_H_
#define TANDEM_ROLLOUT_SERVER_WEIGHT_RECEIVER_H_

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
#include "rollout_server/staged_tensor.h"
#include "rollout_server/weight_sink.h"

namespace tandem::rollout {

class WeightReceiver {
 public:
  struct Live {
    WeightVersion version;
    int64_t epoch = 0;  // under which it was committed; 0: loaded from the directory
    DigestMap digests;
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

  // Copies a chunk of tensor `index` of the manifest, encoded as Begin said. The same range may
  // come again. The chunk that completes a dense tensor also makes its digest, outside the lock.
  //   FAILED_PRECONDITION  no update of `version` is in progress
  //   OUT_OF_RANGE         no such tensor, or the chunk ends past it
  absl::Status Receive(WeightVersion version, int32_t index, int64_t offset,
                       std::span<const std::byte> data) ABSL_LOCKS_EXCLUDED(mu_);

  // Verifies every digest over staging, packs, installs. OK at once when `version` is live with the
  // same digests, so a lost call may be repeated. Blocks; not for gRPC threads.
  //   FAILED_PRECONDITION  no update of `version` is in progress
  //   DATA_LOSS            bytes are missing or a digest differs or is not given (tensor named)
  //   any code from the sink. After an error the update is dropped.
  absl::StatusOr<CommitReport> Commit(WeightVersion version, const DigestMap& digests)
      ABSL_LOCKS_EXCLUDED(mu_);

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
    std::vector<StagedTensor> tensors;  // in manifest order
    std::vector<size_t> places;         // of each, in tensors_
    std::vector<std::string> digests;   // of each; empty: not made yet
    double digest_seconds = 0;          // of those made as they came
  };

  static std::vector<int64_t> SizesOf(const Update& update);  // that travel, in manifest order
  absl::StatusOr<std::vector<size_t>> MatchManifest(const std::vector<TensorSpec>& manifest) const;
  absl::Status CheckVersion(WeightVersion version) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::Status CheckDeltaForms(const std::vector<size_t>& places, const Delta& delta) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::Status Verify(Update& update, const DigestMap& digests) const;
  absl::StatusOr<CommitReport> Install(Update& update, const DigestMap& digests);
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

#endif  // TANDEM_ROLLOUT_SERVER_WEIGHT_RECEIVER_H_
