#include "tests/support/fake_rollout_server.h"

#include <grpcpp/grpcpp.h>

#include <span>
#include <utility>

#include "common/base/mutex.h"
#include "common/rpc/caller_secret.h"
#include "common/rpc/grpc_call.h"
#include "common/rpc/refusal.h"
#include "common/weights/digest.h"
#include "proto/rollout.grpc.pb.h"
#include "proto/weights.grpc.pb.h"

namespace tandem::testing {
namespace {

using rollout::v1::Completion;
using rollout::v1::GenerateGroupRequest;

std::string DigestOf(const std::string& bytes) {
  return Digest128(std::as_bytes(std::span(bytes)));
}

// Four tokens that depend on seed and index alone, which the text names. With filters, each is the
// only id of its support.
void DefaultSample(const GenerateGroupRequest& request, Completion* completion) {
  const rollout::v1::SamplingParams& sampling = request.sampling();
  const bool filtered = sampling.top_k() > 0 || sampling.min_p() > 0 ||
                        (sampling.top_p() > 0 && sampling.top_p() < 1);
  for (int i = 0; i < 4 && i < sampling.max_new_tokens(); ++i) {
    const auto id = static_cast<int32_t>((sampling.seed() / 7 + completion->index() + i) % 50);
    completion->add_token_ids(id);
    if (filtered && sampling.return_support()) completion->add_support()->add_ids(id);
  }
  completion->set_text(std::to_string(completion->index()));
}

void FillIn(int64_t version, Completion* completion) {
  const int length = completion->token_ids_size();
  while (completion->behaviour_logprobs_size() < length) {
    completion->add_behaviour_logprobs(-1);
    completion->add_raw_logprobs(-1);
    completion->add_entropies(1);
    completion->add_logprob_second_moments(2);
  }
  if (completion->version_spans().empty()) {
    auto* const span = completion->add_version_spans();
    span->set_weight_version(version);
    span->set_num_tokens(length);
  }
  if (completion->finish_reason() == rollout::v1::FINISH_REASON_UNSPECIFIED) {
    completion->set_finish_reason(rollout::v1::FINISH_REASON_STOP);
  }
  if (completion->token_hash() == 0) {
    completion->set_token_hash(
        HashTokenIds({completion->token_ids().data(), static_cast<size_t>(length)}));
  }
}

}  // namespace

struct FakeRolloutServer::Impl {
  class Rollout;
  class Weights;

  void Load() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu) {
    live.clear();
    for (const HostTensor& tensor : initial) {
      live[tensor.spec.name] = {reinterpret_cast<const char*>(tensor.bytes.data()),
                                tensor.bytes.size()};
    }
    version = epoch = live_epoch = 0;
    owner.clear();
    staged_names.clear();
  }

  void NoteCaller(const grpc::ServerContext& context, const std::string& method) {
    const auto& metadata = context.client_metadata();
    const auto secret = metadata.find(rpc::kCallerSecretKey);
    MutexLock lock(&mu);
    callers[method].insert(
        secret == metadata.end() ? "" : std::string(secret->second.data(), secret->second.size()));
  }

  // Ends the call with the first of `failures`, named as by a rollout server.
  grpc::Status FailNext(std::deque<absl::Status>* failures, grpc::ServerContext* context)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu) {
    const absl::Status failure = failures->front();
    failures->pop_front();
    const rpc::Refusal refusal = rpc::RefusalOf(failure);
    if (refusal != rpc::Refusal::kNone) {
      context->AddTrailingMetadata(rpc::kRefusalKey, std::string(rpc::RefusalName(refusal)));
    }
    if (rpc::IsBusy(refusal)) {
      context->AddTrailingMetadata(rpc::kRetryAfterKey, std::to_string(retry_after_ms));
    }
    return rpc::ToGrpc(failure);
  }

  std::vector<HostTensor> initial;
  std::string tokenizer_hash, address;
  int port = 0;
  std::unique_ptr<grpc::Service> rollout_service, weight_service;
  std::unique_ptr<grpc::Server> server;

  mutable Mutex mu;
  CondVar changed;
  Sample sample ABSL_GUARDED_BY(mu) = DefaultSample;
  bool held ABSL_GUARDED_BY(mu) = false;
  bool stopped ABSL_GUARDED_BY(mu) = false;
  std::deque<absl::Status> group_failures ABSL_GUARDED_BY(mu), score_failures ABSL_GUARDED_BY(mu),
      commit_failures ABSL_GUARDED_BY(mu), claim_failures ABSL_GUARDED_BY(mu);
  int64_t retry_after_ms ABSL_GUARDED_BY(mu) = 1;
  int flips ABSL_GUARDED_BY(mu) = 0;
  std::string flipped ABSL_GUARDED_BY(mu);
  ScoreToken score ABSL_GUARDED_BY(mu) = [](int64_t, int) { return -1.0f; };
  std::vector<rollout::v1::ScoreRequest> score_requests ABSL_GUARDED_BY(mu);
  std::vector<GenerateGroupRequest> requests ABSL_GUARDED_BY(mu);
  std::string owner ABSL_GUARDED_BY(mu);
  double silent_seconds ABSL_GUARDED_BY(mu) = 0, most_silent_seconds ABSL_GUARDED_BY(mu) = 0;
  // Method -> secrets that were shown.
  std::map<std::string, std::set<std::string>> callers ABSL_GUARDED_BY(mu);
  int64_t version ABSL_GUARDED_BY(mu) = 0, epoch ABSL_GUARDED_BY(mu) = 0;
  int64_t live_epoch ABSL_GUARDED_BY(mu) = 0;
  int64_t num_commits ABSL_GUARDED_BY(mu) = 0, num_aborts ABSL_GUARDED_BY(mu) = 0;
  std::map<std::string, std::string> live ABSL_GUARDED_BY(mu), staged ABSL_GUARDED_BY(mu);
  std::vector<std::string> staged_names ABSL_GUARDED_BY(mu);
};

class FakeRolloutServer::Impl::Rollout : public rollout::v1::RolloutService::Service {
 public:
  explicit Rollout(Impl* impl) : impl_(impl) {}

  grpc::Status GenerateGroup(
      grpc::ServerContext* context, const GenerateGroupRequest* request,
      grpc::ServerWriter<rollout::v1::GenerateGroupResponse>* writer) override {
    impl_->NoteCaller(*context, "GenerateGroup");
    int64_t version;
    Sample sample;
    {
      MutexLock lock(&impl_->mu);
      impl_->requests.push_back(*request);
      while (impl_->held && !impl_->stopped && !context->IsCancelled()) {
        impl_->changed.WaitUntil(&impl_->mu,
                                 std::chrono::steady_clock::now() + std::chrono::milliseconds(20));
      }
      if (impl_->stopped) return {grpc::StatusCode::UNAVAILABLE, "killed"};
      if (!impl_->group_failures.empty()) {
        return impl_->FailNext(&impl_->group_failures, context);
      }
      if (request->min_weight_version() > impl_->version) {
        return {grpc::StatusCode::FAILED_PRECONDITION, "live weights are older"};
      }
      version = impl_->version;
      sample = impl_->sample;
    }
    rollout::v1::GenerateGroupResponse response;
    response.set_group_id(request->group_id());
    const int num_members = request->num_completions();
    const int num_sampled = num_members + (request->greedy_baseline() ? 1 : 0);
    // In reverse order, because the client must not rely on the order.
    for (int i = num_sampled - 1; i >= 0; --i) {
      response.clear_completion();
      response.mutable_completion()->set_index(request->first_completion() + i);
      response.mutable_completion()->set_greedy(i == num_members);
      sample(*request, response.mutable_completion());
      FillIn(version, response.mutable_completion());
      writer->Write(response);
    }
    response.mutable_done()->set_num_completions(num_sampled);
    writer->Write(response);
    return grpc::Status::OK;
  }

  grpc::Status Score(grpc::ServerContext* context, const rollout::v1::ScoreRequest* request,
                     rollout::v1::ScoreResponse* response) override {
    impl_->NoteCaller(*context, "Score");
    MutexLock lock(&impl_->mu);
    impl_->score_requests.push_back(*request);
    if (!impl_->score_failures.empty()) return impl_->FailNext(&impl_->score_failures, context);
    response->set_weight_version(impl_->version);
    for (const auto& sequence : request->sequences()) {
      auto* const score = response->add_scores();
      for (int i = 0; i < sequence.token_ids_size(); ++i) {
        const int t = i - sequence.num_prompt_tokens();
        score->add_logprobs(t < 0 ? 0 : impl_->score(impl_->version, t));
      }
    }
    return grpc::Status::OK;
  }

  grpc::Status GetInfo(grpc::ServerContext*, const rollout::v1::GetInfoRequest*,
                       rollout::v1::GetInfoResponse* response) override {
    MutexLock lock(&impl_->mu);
    response->set_dtype("fp32");
    response->set_vocab_size(50);
    response->set_max_context_tokens(4096);
    response->set_live_weight_version(impl_->version);
    response->set_weight_epoch(impl_->live_epoch);
    response->set_owner_run_id(impl_->owner);
    response->set_tokenizer_hash(impl_->tokenizer_hash);
    response->set_max_deadline_ms(3'600'000);
    response->set_engine_silent_ms(static_cast<int64_t>(impl_->silent_seconds * 1e3));
    response->set_max_engine_silent_ms(static_cast<int64_t>(impl_->most_silent_seconds * 1e3));
    return grpc::Status::OK;
  }

 private:
  Impl* const impl_;
};

class FakeRolloutServer::Impl::Weights : public weights::v1::WeightService::Service {
 public:
  explicit Weights(Impl* impl) : impl_(impl) {}

  grpc::Status InitTransfer(grpc::ServerContext* context,
                            const weights::v1::InitTransferRequest* request,
                            weights::v1::InitTransferResponse* response) override {
    impl_->NoteCaller(*context, "InitTransfer");
    MutexLock lock(&impl_->mu);
    if (!impl_->claim_failures.empty()) {
      const absl::Status failure = impl_->claim_failures.front();
      impl_->claim_failures.pop_front();
      return rpc::ToGrpc(failure);
    }
    if (!impl_->owner.empty() && impl_->owner != request->run_id()) {
      return {grpc::StatusCode::FAILED_PRECONDITION, "owned by run " + impl_->owner};
    }
    impl_->owner = request->release() ? "" : request->run_id();
    impl_->epoch = request->epoch();
    response->set_epoch(request->epoch());
    response->set_live_version(impl_->version);
    return grpc::Status::OK;
  }

  grpc::Status BeginUpdate(grpc::ServerContext* context,
                           const weights::v1::BeginUpdateRequest* request,
                           weights::v1::BeginUpdateResponse*) override {
    impl_->NoteCaller(*context, "BeginUpdate");
    MutexLock lock(&impl_->mu);
    if (impl_->owner != request->run_id() || impl_->epoch != request->epoch()) {
      return {grpc::StatusCode::FAILED_PRECONDITION, "not the owner, or another epoch"};
    }
    if (impl_->live_epoch == impl_->epoch && request->manifest().version() <= impl_->version) {
      return {grpc::StatusCode::FAILED_PRECONDITION, "version is not newer"};
    }
    impl_->staged.clear();
    impl_->staged_names.clear();
    for (const auto& tensor : request->manifest().tensors()) {
      impl_->staged_names.push_back(tensor.name());
    }
    return grpc::Status::OK;
  }

  grpc::Status PushChunks(grpc::ServerContext* context,
                          grpc::ServerReader<weights::v1::PushChunksRequest>* reader,
                          weights::v1::PushChunksResponse*) override {
    impl_->NoteCaller(*context, "PushChunks");
    weights::v1::PushChunksRequest chunk;
    while (reader->Read(&chunk)) {
      MutexLock lock(&impl_->mu);
      std::string& bytes =
          impl_->staged[impl_->staged_names.at(static_cast<size_t>(chunk.tensor_index()))];
      const size_t end = static_cast<size_t>(chunk.offset_bytes()) + chunk.data().size();
      if (bytes.size() < end) bytes.resize(end);
      bytes.replace(static_cast<size_t>(chunk.offset_bytes()), chunk.data().size(), chunk.data());
    }
    return grpc::Status::OK;
  }

  grpc::Status CommitUpdate(grpc::ServerContext* context,
                            const weights::v1::CommitUpdateRequest* request,
                            weights::v1::CommitUpdateResponse* response) override {
    impl_->NoteCaller(*context, "CommitUpdate");
    MutexLock lock(&impl_->mu);
    if (!impl_->commit_failures.empty()) {
      const absl::Status failure = impl_->commit_failures.front();
      impl_->commit_failures.pop_front();
      return rpc::ToGrpc(failure);
    }
    for (const auto& digest : request->digests()) {
      if (DigestOf(impl_->staged[digest.name()]) != digest.xxh3_128()) {
        return {grpc::StatusCode::DATA_LOSS, "digest of " + digest.name() + " differs"};
      }
    }
    ++impl_->num_commits;
    impl_->live = impl_->staged;
    impl_->version = request->version();
    impl_->live_epoch = impl_->epoch;
    response->set_live_version(impl_->version);
    FillDigests(response->mutable_live_digests());
    response->set_pause_ms(1.5);
    return grpc::Status::OK;
  }

  grpc::Status AbortUpdate(grpc::ServerContext* context, const weights::v1::AbortUpdateRequest*,
                           weights::v1::AbortUpdateResponse*) override {
    impl_->NoteCaller(*context, "AbortUpdate");
    MutexLock lock(&impl_->mu);
    ++impl_->num_aborts;
    return grpc::Status::OK;
  }

  grpc::Status GetWeightInfo(grpc::ServerContext* context, const weights::v1::GetWeightInfoRequest*,
                             weights::v1::GetWeightInfoResponse* response) override {
    impl_->NoteCaller(*context, "GetWeightInfo");
    MutexLock lock(&impl_->mu);
    response->set_live_version(impl_->version);
    response->set_epoch(impl_->live_epoch);
    for (const auto& [name, bytes] : impl_->live) {
      auto* const entry = response->add_live_digests();
      entry->set_name(name);
      entry->set_xxh3_128(DigestOf(bytes));
    }
    for (const HostTensor& tensor : impl_->initial) {
      auto* const spec = response->add_tensors();
      spec->set_name(tensor.spec.name);
      spec->set_dtype(std::string(DTypeName(tensor.spec.dtype)));
    }
    return grpc::Status::OK;
  }

 private:
  void FillDigests(google::protobuf::RepeatedPtrField<weights::v1::TensorDigest>* digests)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(impl_->mu) {
    const bool flip = impl_->flips > 0;
    if (flip) --impl_->flips;
    for (const auto& [name, bytes] : impl_->live) {
      auto* const entry = digests->Add();
      entry->set_name(name);
      entry->set_xxh3_128(flip && name == impl_->flipped ? DigestOf(bytes + "x") : DigestOf(bytes));
    }
    if (flip) impl_->live[impl_->flipped] += "x";  // as a corrupted install would report
  }

  Impl* const impl_;
};

FakeRolloutServer::FakeRolloutServer(std::vector<HostTensor> tensors, std::string tokenizer_hash)
    : impl_(std::make_unique<Impl>()) {
  impl_->initial = std::move(tensors);
  impl_->tokenizer_hash = std::move(tokenizer_hash);
  Restart();
}

FakeRolloutServer::~FakeRolloutServer() { Stop(); }

void FakeRolloutServer::Stop() {
  {
    MutexLock lock(&impl_->mu);
    impl_->stopped = true;
    impl_->changed.NotifyAll();
  }
  if (impl_->server == nullptr) return;
  impl_->server->Shutdown(std::chrono::system_clock::now());
  impl_->server.reset();
}

void FakeRolloutServer::Restart() {
  {
    MutexLock lock(&impl_->mu);
    impl_->stopped = false;
    impl_->Load();
  }
  impl_->rollout_service = std::make_unique<Impl::Rollout>(impl_.get());
  impl_->weight_service = std::make_unique<Impl::Weights>(impl_.get());
  grpc::ServerBuilder builder;
  builder.AddListeningPort("127.0.0.1:" + std::to_string(impl_->port),
                           grpc::InsecureServerCredentials(), &impl_->port);
  builder.RegisterService(impl_->rollout_service.get());
  builder.RegisterService(impl_->weight_service.get());
  impl_->server = builder.BuildAndStart();
  impl_->address = "127.0.0.1:" + std::to_string(impl_->port);
}

const std::string& FakeRolloutServer::address() const { return impl_->address; }

void FakeRolloutServer::set_sample(Sample sample) {
  MutexLock lock(&impl_->mu);
  impl_->sample = std::move(sample);
}

void FakeRolloutServer::set_score(ScoreToken score) {
  MutexLock lock(&impl_->mu);
  impl_->score = std::move(score);
}

std::vector<rollout::v1::ScoreRequest> FakeRolloutServer::score_requests() const {
  MutexLock lock(&impl_->mu);
  return impl_->score_requests;
}

void FakeRolloutServer::FailNextGroups(std::deque<absl::Status> failures) {
  MutexLock lock(&impl_->mu);
  impl_->group_failures = std::move(failures);
}

void FakeRolloutServer::FailNextScores(std::deque<absl::Status> failures) {
  MutexLock lock(&impl_->mu);
  impl_->score_failures = std::move(failures);
}

void FakeRolloutServer::set_retry_after_ms(int64_t ms) {
  MutexLock lock(&impl_->mu);
  impl_->retry_after_ms = ms;
}

void FakeRolloutServer::FlipNextDigests(int count, const std::string& tensor) {
  MutexLock lock(&impl_->mu);
  impl_->flips = count;
  impl_->flipped = tensor;
}

void FakeRolloutServer::FailNextCommits(std::deque<absl::Status> failures) {
  MutexLock lock(&impl_->mu);
  impl_->commit_failures = std::move(failures);
}

void FakeRolloutServer::HoldGroups() {
  MutexLock lock(&impl_->mu);
  impl_->held = true;
}

void FakeRolloutServer::ReleaseGroups() {
  MutexLock lock(&impl_->mu);
  impl_->held = false;
  impl_->changed.NotifyAll();
}

void FakeRolloutServer::FailNextClaims(std::deque<absl::Status> failures) {
  MutexLock lock(&impl_->mu);
  impl_->claim_failures = std::move(failures);
}

std::map<std::string, std::set<std::string>> FakeRolloutServer::callers() const {
  MutexLock lock(&impl_->mu);
  return impl_->callers;
}

void FakeRolloutServer::set_engine_silence(double seconds, double most) {
  MutexLock lock(&impl_->mu);
  impl_->silent_seconds = seconds;
  impl_->most_silent_seconds = most;
}

void FakeRolloutServer::set_owner(const std::string& run_id) {
  MutexLock lock(&impl_->mu);
  impl_->owner = run_id;
}

std::vector<GenerateGroupRequest> FakeRolloutServer::requests() const {
  MutexLock lock(&impl_->mu);
  return impl_->requests;
}

int64_t FakeRolloutServer::num_commits() const {
  MutexLock lock(&impl_->mu);
  return impl_->num_commits;
}

int64_t FakeRolloutServer::num_aborts() const {
  MutexLock lock(&impl_->mu);
  return impl_->num_aborts;
}

int64_t FakeRolloutServer::live_version() const {
  MutexLock lock(&impl_->mu);
  return impl_->version;
}

std::string FakeRolloutServer::owner() const {
  MutexLock lock(&impl_->mu);
  return impl_->owner;
}

std::string FakeRolloutServer::live_bytes(const std::string& tensor) const {
  MutexLock lock(&impl_->mu);
  const auto it = impl_->live.find(tensor);
  return it == impl_->live.end() ? "" : it->second;
}

}  // namespace tandem::testing
