// ForeignServer: one vLLM server as the trainer's client and publisher see a rollout server: groups
// with weight versions, scores, and pushes that are committed or not (stages 1 to 3 and 9). It answers
// the calls of proto/rollout.proto and proto/weights.proto; foreign_bridge.cc puts it behind gRPC.
//
// What is proven: which weights sampled a group, as long as only this run changes them. A group is of
// the version that was live when it began, since a push waits for groups or aborts them, and the
// server's mark (VllmServer::Mark) was the same before and after. That vLLM computes with the bytes
// that were written is proven for the parameters that it keeps in our layout, by its checksums; for
// the others each push has a probe: the log-probs of a fixed text before and after it.
//
// Thread-safe. Calls wait for the server.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/mutex.h"
#include "common/tokenizer/tokenizer.h"
#include "common/weights/digest.h"
#include "proto/rollout.pb.h"
#include "proto/weights.pb.h"
#include "trainer/foreign/foreign_options.h"
#include "trainer/foreign/vllm_server.h"
#include "trainer/foreign/weights_directory.h"

namespace tandem::trainer {

struct ForeignRun {
  std::string model;        // Hugging Face directory of the trainer
  std::string weights_dir;  // WeightsDirOf
  ForeignInFlight in_flight = ForeignInFlight::kDrain;
  bool checksums = true;
  double temperature = 1;  // of the completions to train on
  double call_seconds = 600, push_seconds = 120;
  const Tokenizer* tokenizer = nullptr;  // of the trainer; must outlive the server
};

// What was written, beside the version before: the first version of a server has none.
enum class ForeignBytes { kFirst, kSame, kOther };

// What is known of a push: which of the server's parameters have the digest of what was written
// (weight_checksums.h), and what it did to the log-probs of the probe text.
struct ForeignDelivery {
  std::string server;
  int64_t version = 0;
  int64_t num_tokens = 0;                          // of the text; 0: it could not be scored
  int64_t num_moved = 0;                           // with another log-prob than before
  double mean_abs_change = 0, max_abs_change = 0;  // nats
  ForeignBytes bytes = ForeignBytes::kFirst;
  int64_t num_parameters = 0;  // with a checksum; 0: the server gives none
  int64_t num_proven = 0;
};

class ForeignServer {
 public:
  using Cancelled = VllmServer::Cancelled;

  // `address`: vllm://HOST:PORT.
  ForeignServer(const std::string& address, const ForeignRun& run);
  ~ForeignServer();

  const std::string& address() const { return address_; }
  // The probe text by the trainer's tokenizer.
  const std::vector<int32_t>& probe_ids() const { return probe_ids_; }

  // The errors of VllmServer, and:
  //   INVALID_ARGUMENT  no run can be trained on it as it is: no development mode, another tokenizer,
  //                     or raw log-probs at a temperature other than 1
  absl::StatusOr<rollout::v1::GetInfoResponse> Info();

  // All completions of the group, with its greedy baseline last.
  //   INVALID_ARGUMENT     it asks for what vLLM does not give (named)
  //   FAILED_PRECONDITION  the weights are older than min_weight_version, or not known
  //   ABORTED              new weights came (in_flight abort)
  //   UNAVAILABLE          the server was started anew meanwhile, or others changed its weights
  absl::StatusOr<std::vector<rollout::v1::Completion>> Generate(
      const rollout::v1::GenerateGroupRequest& request, const Cancelled& cancelled);

  //   INVALID_ARGUMENT  another temperature than 1, filters, the decode path or rounding: vLLM scores
  //                     prompts, at temperature 1
  absl::StatusOr<rollout::v1::ScoreResponse> Score(const rollout::v1::ScoreRequest& request,
                                                   const Cancelled& cancelled);

  // The calls of WeightService, with its errors.
  absl::Status Claim(const weights::v1::InitTransferRequest& request);
  absl::Status Begin(const weights::v1::BeginUpdateRequest& request);
  absl::Status Receive(const weights::v1::PushChunksRequest& chunk);
  absl::StatusOr<weights::v1::CommitUpdateResponse> Commit(
      const weights::v1::CommitUpdateRequest& request);
  void Abort();
  absl::StatusOr<weights::v1::GetWeightInfoResponse> WeightInfo();

  std::vector<ForeignDelivery> TakeDeliveries();

  void Stop();  // calls in progress end with CANCELLED

 private:
  absl::Status Describe();
  absl::Status CheckTokenizer(const VllmFacts& facts);
  absl::Status CheckLogprobs(const VllmFacts& facts);
  absl::Status CheckSame();
  absl::StatusOr<int64_t> Enter(const Cancelled& cancelled);
  void Leave();
  absl::Status Close(bool waits);
  absl::Status Swap(const std::string& directory, bool* touched);
  absl::Status Prove(ForeignDelivery* delivery) ABSL_EXCLUSIVE_LOCKS_REQUIRED(push_mu_);
  absl::StatusOr<std::vector<float>> ScoreProbe();
  void NoteDelivery(const absl::StatusOr<std::vector<float>>& before, ForeignDelivery delivery);
  absl::StatusOr<VllmFacts> facts();

  const std::string address_;
  const ForeignRun run_;
  VllmServer server_;
  std::vector<int32_t> probe_ids_;

  Mutex describing_;  // one description at a time

  Mutex push_mu_;  // of one call of a push at a time
  WeightsDirectory directory_ ABSL_GUARDED_BY(push_mu_);

  Mutex mu_;
  CondVar changed_;
  std::optional<VllmFacts> facts_ ABSL_GUARDED_BY(mu_);  // none: to be asked
  std::string owner_ ABSL_GUARDED_BY(mu_);
  int64_t epoch_ ABSL_GUARDED_BY(mu_) = 0;
  bool closed_ ABSL_GUARDED_BY(mu_) = false;  // no group may begin
  int64_t num_running_ ABSL_GUARDED_BY(mu_) = 0;
  // The weights that the server runs; all of it is void unless `known_`.
  bool known_ ABSL_GUARDED_BY(mu_) = false;
  int64_t live_version_ ABSL_GUARDED_BY(mu_) = 0, live_epoch_ ABSL_GUARDED_BY(mu_) = 0;
  DigestMap live_digests_ ABSL_GUARDED_BY(mu_);
  std::string mark_ ABSL_GUARDED_BY(mu_);
  std::set<std::string> proven_ ABSL_GUARDED_BY(mu_);     // parameters, by the last push
  std::vector<float> probe_scores_ ABSL_GUARDED_BY(mu_);  // under the live weights; may be empty
  std::vector<ForeignDelivery> deliveries_ ABSL_GUARDED_BY(mu_);
};

}  // namespace tandem::trainer
