#include "rollout_server/vllm/weight_control.h"

#include <cstddef>
#include <span>
#include <utility>
#include <vector>

#include "common/base/log.h"
#include "common/base/status_macros.h"
#include "common/rpc/caller_secret.h"
#include "common/weights/digest.h"
#include "common/weights/host_tensor.h"

namespace tandem::rollout {
namespace {

constexpr char kRunId[] = "vllm-client";

absl::Status CheckDigests(const std::map<std::string, std::string>& wanted,
                          const DigestMap& found) {
  for (const auto& [name, digest] : wanted) {
    const auto one = found.find(name);
    if (one == found.end()) return InvalidArgument("digests: the model has no tensor ", name);
    if (one->second != digest) {
      return DataLoss("tensor ", name, " of the directory has digest ", one->second, ", want ",
                      digest, ": the weights are not those that were written");
    }
  }
  return absl::OkStatus();
}

}  // namespace

WeightControl::WeightControl(const ServiceParts& parts, WorkerThread* worker)
    : parts_(parts), worker_(worker), secret_(rpc::NewSecret()) {}

CallerProof WeightControl::ProofOf(const std::string& certificate) const {
  return {.run_id = kRunId, .certificate = certificate, .secret = secret_};
}

absl::Status WeightControl::Hold(const std::string& certificate) {
  const std::optional<Ownership::LiveClaim> claim = parts_.ownership->claim();
  const int64_t epoch =
      claim && claim->run_id == kRunId ? claim->epoch : parts_.weights->live()->epoch + 1;
  return parts_.ownership->Claim(ProofOf(certificate), epoch, /*lease_ms=*/0).status();
}

void WeightControl::LetGo(const std::string& certificate) {
  {
    MutexLock lock(&mu_);
    if (updating_) return;
  }
  if (paused()) return;
  if (const absl::Status freed = parts_.ownership->Release(ProofOf(certificate)); !freed.ok()) {
    log::Warning("the server was not given back", {{"error", std::string(freed.message())}});
  }
}

void WeightControl::OnWorker(std::function<absl::Status()> work, Done done) {
  const bool taken = worker_->Run([work = std::move(work), done] { done(work()); });
  if (!taken) {
    done(ResourceExhausted("more than ", WorkerThread::kMaxWaiting, " weight calls are waiting"));
  }
}

void WeightControl::Pause(const std::string& certificate, PauseHow how, Done done) {
  if (const absl::Status held = Hold(certificate); !held.ok()) return done(held);
  if (how == PauseHow::kAbort) {
    parts_.groups->AbortAll(Aborted("generation was paused with mode abort: ask again"));
  }
  parts_.engine->Pause(std::move(done));
}

void WeightControl::Resume(const std::string& certificate, Done done) {
  // As in vLLM, what is not paused may be resumed.
  if (!paused()) return done(absl::OkStatus());
  if (const absl::Status held = Hold(certificate); !held.ok()) return done(held);
  parts_.engine->Resume([this, certificate, done = std::move(done)](const absl::Status& status) {
    LetGo(certificate);
    done(status);
  });
}

void WeightControl::StartUpdate(const std::string& certificate, Done done) {
  done(Begin(certificate));
}

absl::Status WeightControl::Begin(const std::string& certificate) {
  TANDEM_RETURN_IF_ERROR(Hold(certificate));
  MutexLock lock(&mu_);
  updating_ = true;
  weights_.clear();
  digests_.clear();
  return absl::OkStatus();
}

void WeightControl::UpdateWeights(const std::string& certificate, Update update, Done done) {
  OnWorker([this, certificate, update = std::move(update)] { return Take(certificate, update); },
           std::move(done));
}

absl::Status WeightControl::Take(const std::string& certificate, const Update& update) {
  TANDEM_RETURN_IF_ERROR(Hold(certificate));
  {
    MutexLock lock(&mu_);
    if (!updating_) return FailedPrecondition("call StartWeightUpdate before UpdateWeights");
  }
  TANDEM_ASSIGN_OR_RETURN(std::vector<HostTensor> weights,
                          ReadWeightsAs(*parts_.model, update.directory));
  DigestMap digests = DigestTensors(weights);
  TANDEM_RETURN_IF_ERROR(CheckDigests(update.digests, digests));
  MutexLock lock(&mu_);
  weights_ = std::move(weights);
  digests_ = std::move(digests);
  return absl::OkStatus();
}

void WeightControl::FinishUpdate(const std::string& certificate, std::optional<int64_t> version,
                                 Done done) {
  OnWorker([this, certificate, version] { return Commit(certificate, version); }, std::move(done));
}

absl::Status WeightControl::Commit(const std::string& certificate, std::optional<int64_t> wanted) {
  TANDEM_RETURN_IF_ERROR(Hold(certificate));
  std::vector<HostTensor> weights;
  DigestMap digests;
  {
    MutexLock lock(&mu_);
    if (weights_.empty()) {
      return FailedPrecondition(
          "no weights were given: call StartWeightUpdate and UpdateWeights before "
          "FinishWeightUpdate");
    }
    weights = std::exchange(weights_, {});
    digests = std::exchange(digests_, {});
    updating_ = false;
  }
  const WeightVersion version = {wanted.value_or(live_version() + 1)};
  std::vector<TensorSpec> manifest;
  for (const HostTensor& tensor : weights) manifest.push_back(tensor.spec);
  absl::Status status =
      version.value > live_version()
          ? parts_.weights->Begin(version, manifest).status()
          : InvalidArgument("weight_version is ", version.value,
                            ", want a number above the live version ", live_version());
  for (size_t i = 0; i < weights.size() && status.ok(); ++i) {
    status = parts_.weights->Receive(version, static_cast<int32_t>(i), 0, weights[i].bytes);
  }
  if (status.ok()) {
    const auto report = parts_.weights->Commit(version, digests);
    status = report.status();
    if (report.ok()) {
      parts_.metrics->OnCommit(*report);
      parts_.history->Committed(report->live.epoch, report->live.version, report->live.digests);
      log::Info("weights committed from a directory", {{"version", version.value}});
    }
  }
  if (!status.ok()) parts_.metrics->OnCommitFailed(status);
  LetGo(certificate);
  return status;
}

void WeightControl::UpdateAtOnce(const std::string& certificate, Update update, Done done) {
  OnWorker(
      [this, certificate, update = std::move(update)]() -> absl::Status {
        TANDEM_RETURN_IF_ERROR(Begin(certificate));
        absl::Status status = Take(certificate, update);
        if (status.ok()) return Commit(certificate, std::nullopt);
        {
          MutexLock lock(&mu_);
          updating_ = false;
        }
        LetGo(certificate);
        return status;
      },
      std::move(done));
}

}  // namespace tandem::rollout
