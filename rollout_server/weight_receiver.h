// WeightReceiver: takes one weight push into staging and hands it, whole or not at all, to the
// engine (arrow 9). WeightService feeds it from the network, tests from memory.
//
// A push is Begin, chunks in any order, Commit. What is served changes only inside Commit; until
// then and after any failure the live weights stay. Thread-safe: Commit verifies and packs without
// holding back the other calls or the decode steps. Memory: one staging copy of the model from the
// first Begin on (reused by the next push).
#ifndef TANDEM_ROLLOUT_SERVER_WEIGHT_RECEIVER_H_
#define TANDEM_ROLLOUT_SERVER_WEIGHT_RECEIVER_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
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
    double verify_seconds = 0;  // digests and packing, beside the decode steps
    double pause_seconds = 0;   // no decode step could run
  };

  // `tensors` is the full set the engine needs, in its order. `sink` must outlive this object.
  WeightReceiver(WeightSink* sink, std::vector<TensorSpec> tensors, Live initial);

  // Versions may start anew; an update in progress is dropped.
  void StartEpoch(int64_t epoch) ABSL_LOCKS_EXCLUDED(mu_);

  // Starts a push; returns its bytes. An update in progress is dropped, so Begin may be retried.
  //   INVALID_ARGUMENT     version < 0; a tensor is missing, unknown, doubled, or of another dtype
  //   or
  //                        shape (named)
  //   FAILED_PRECONDITION  version is not newer than the live one of this epoch
  //   ABORTED              a commit is running
  absl::StatusOr<int64_t> Begin(WeightVersion version, std::vector<TensorSpec> manifest)
      ABSL_LOCKS_EXCLUDED(mu_);

  // Copies a chunk into tensor `index` of the manifest. The same range may come again.
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

  Live live() const ABSL_LOCKS_EXCLUDED(mu_);
  WeightVersion staged_version() const ABSL_LOCKS_EXCLUDED(mu_);  // 0: none
  const std::vector<TensorSpec>& tensors() const { return tensors_; }

 private:
  struct Staging {
    std::unique_ptr<std::byte[]> bytes;
  };
  struct StagedTensor {
    size_t place = 0;                    // in tensors_
    std::shared_ptr<Staging> staging;    // shared with the sink while it packs
    std::map<int64_t, int64_t> arrived;  // begin -> end, disjoint and apart
  };
  struct Update {
    WeightVersion version;
    std::vector<StagedTensor> tensors;  // in manifest order
  };

  absl::StatusOr<std::vector<size_t>> MatchManifest(const std::vector<TensorSpec>& manifest) const;
  absl::Status CheckVersion(WeightVersion version) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::Status Verify(const Update& update, const DigestMap& digests) const;
  absl::StatusOr<CommitReport> Install(Update update, const DigestMap& digests);
  void KeepStaging(Update update) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void DropUpdate() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  WeightSink* const sink_;
  const std::vector<TensorSpec> tensors_;
  const std::map<std::string, size_t> places_;  // tensor name -> index in tensors_

  mutable Mutex mu_;
  CondVar commit_ended_;
  int64_t epoch_ ABSL_GUARDED_BY(mu_) = 0;
  bool committed_in_epoch_ ABSL_GUARDED_BY(mu_) = true;  // the directory's weights are of epoch 0
  Live live_ ABSL_GUARDED_BY(mu_);
  std::unique_ptr<Update> update_ ABSL_GUARDED_BY(mu_);  // null: none in progress
  bool committing_ ABSL_GUARDED_BY(mu_) = false;
  std::vector<std::shared_ptr<Staging>> spare_ ABSL_GUARDED_BY(mu_);  // by place; may be null
};

}  // namespace tandem::rollout

#endif  // TANDEM_ROLLOUT_SERVER_WEIGHT_RECEIVER_H_
