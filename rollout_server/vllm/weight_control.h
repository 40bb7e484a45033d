// WeightControl: pauses and weight updates as vLLM's clients ask for them, by gRPC and HTTP: a pause
// has no owner and no lease there, and weights come from a directory. Here they do what a run of our
// own does: the caller owns the server from the first call to the last, an update is staged and
// verified beside the decode steps, and it is installed whole or not at all (weight_receiver.h).
//
// Calls that wait run on `worker`, one after the other with the commits of weight pushes.
// Thread-safe.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/mutex.h"
#include "rollout_server/groups/worker_thread.h"
#include "rollout_server/service/services.h"

namespace tandem::rollout {

enum class PauseHow {
  kAbort,  // what is under way ends with ABORTED
  kKeep,   // what is under way goes on after Resume
};

class WeightControl {
 public:
  using Done = std::function<void(absl::Status)>;

  // Both must outlive this object, and so must what `worker` runs.
  WeightControl(const ServiceParts& parts, WorkerThread* worker);

  // `certificate`: the name of the caller, as CallerProof has it. All but IsPaused and
  // live_version fail with
  //   FAILED_PRECONDITION  a run owns the server, or another caller of this object
  // `done` runs on the worker, on the engine's thread, or on this one.

  void Pause(const std::string& certificate, PauseHow how, Done done);
  void Resume(const std::string& certificate, Done done);
  bool paused() const { return parts_.engine->paused(); }

  void StartUpdate(const std::string& certificate, Done done);

  struct Update {
    std::string directory;                       // of safetensors, on this machine
    std::map<std::string, std::string> digests;  // XXH3-128 by tensor, as served; may be empty
  };
  // Stages the weights of a directory, after StartUpdate.
  //   NOT_FOUND         no such directory
  //   INVALID_ARGUMENT  its tensors are not the model's (named)
  //   DATA_LOSS         a tensor has another digest than was given (named)
  void UpdateWeights(const std::string& certificate, Update update, Done done);

  // Installs them as `version`; none: the next one.
  //   INVALID_ARGUMENT     `version` is not above the live one
  //   FAILED_PRECONDITION  there are none
  void FinishUpdate(const std::string& certificate, std::optional<int64_t> version, Done done);

  // The three at once.
  void UpdateAtOnce(const std::string& certificate, Update update, Done done);

  int64_t live_version() const { return parts_.weights->live()->version.value; }

 private:
  CallerProof ProofOf(const std::string& certificate) const;
  absl::Status Hold(const std::string& certificate);
  void LetGo(const std::string& certificate) ABSL_LOCKS_EXCLUDED(mu_);
  void OnWorker(std::function<absl::Status()> work, Done done);
  absl::Status Begin(const std::string& certificate) ABSL_LOCKS_EXCLUDED(mu_);
  absl::Status Take(const std::string& certificate, const Update& update) ABSL_LOCKS_EXCLUDED(mu_);
  absl::Status Commit(const std::string& certificate, std::optional<int64_t> version)
      ABSL_LOCKS_EXCLUDED(mu_);

  const ServiceParts parts_;
  WorkerThread* const worker_;
  const std::string secret_;  // by which this object owns the server

  Mutex mu_;
  bool updating_ ABSL_GUARDED_BY(mu_) = false;            // StartUpdate was called
  std::vector<HostTensor> weights_ ABSL_GUARDED_BY(mu_);  // of UpdateWeights, verified
  DigestMap digests_ ABSL_GUARDED_BY(mu_);
};

}  // namespace tandem::rollout
