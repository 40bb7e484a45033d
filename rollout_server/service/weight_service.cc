#include "rollout_server/service/services.h"

#include <grpcpp/grpcpp.h>

#include <functional>
#include <memory>
#include <numeric>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "common/base/log.h"
#include "common/base/status_macros.h"
#include "common/rpc/grpc_call.h"
#include "proto/weights.grpc.pb.h"
#include "rollout_server/service/call_context.h"

namespace tandem::rollout {
namespace {

namespace wire = ::tandem::weights::v1;

// Two buckets are in memory while weights arrive through the push group.
constexpr int64_t kMaxBucketBytes = int64_t{1} << 30;

void DigestsToWire(const WeightReceiver::Live& live,
                   google::protobuf::RepeatedPtrField<wire::TensorDigest>* out) {
  for (const auto& [name, digest] : live.digests) {
    wire::TensorDigest* one = out->Add();
    one->set_name(name);
    one->set_xxh3_128(digest);
    const auto sums = live.word_sums.find(name);
    if (sums != live.word_sums.end()) one->set_word_sums(sums->second);
  }
}

void MergedToWire(const WeightReceiver::Live& live,
                  google::protobuf::RepeatedPtrField<wire::TensorDigest>* digests,
                  google::protobuf::RepeatedPtrField<wire::ModuleEffect>* effects) {
  for (const auto& [name, digest] : live.merged) {
    wire::TensorDigest* one = digests->Add();
    one->set_name(name);
    one->set_xxh3_128(digest);
  }
  for (const ModuleEffect& module : live.effects) {
    wire::ModuleEffect* one = effects->Add();
    one->set_weight(module.weight);
    one->set_squared_change(module.effect.squared_change);
    one->set_arrived(module.effect.arrived);
    one->set_squared_loss(module.effect.squared_loss);
    one->set_changed(module.effect.changed);
  }
}

absl::StatusOr<std::vector<TensorSpec>> ManifestFromWire(const wire::WeightManifest& manifest) {
  std::vector<TensorSpec> tensors;
  tensors.reserve(static_cast<size_t>(manifest.tensors_size()));
  for (const wire::TensorSpec& tensor : manifest.tensors()) {
    TANDEM_ASSIGN_OR_RETURN(const DType dtype, DTypeFromName(tensor.dtype()));
    tensors.push_back({tensor.name(), dtype, {tensor.shape().begin(), tensor.shape().end()}});
  }
  return tensors;
}

absl::StatusOr<WireForm> FormFromWire(const wire::TensorForm& form) {
  for (const auto& [on_wire, encoding] :
       {std::pair(wire::TensorForm::ENCODING_DENSE, TensorEncoding::kDense),
        {wire::TensorForm::ENCODING_MASK, TensorEncoding::kMask},
        {wire::TensorForm::ENCODING_GAPS, TensorEncoding::kGaps}}) {
    if (form.encoding() == on_wire) return WireForm{encoding, form.num_bytes()};
  }
  return InvalidArgument("encoding ", static_cast<int>(form.encoding()), " is not known here");
}

absl::StatusOr<std::optional<WeightReceiver::Delta>> DeltaFromWire(
    const wire::BeginUpdateRequest& request) {
  if (!request.has_delta()) return std::nullopt;
  WeightReceiver::Delta delta{.base = {request.delta().base_version()}};
  for (const wire::TensorForm& form : request.delta().forms()) {
    TANDEM_ASSIGN_OR_RETURN(delta.forms.emplace_back(), FormFromWire(form));
  }
  return delta;
}

// One PushChunks stream; deletes itself.
class PushCall : public grpc::ServerReadReactor<wire::PushChunksRequest> {
 public:
  PushCall(const ServiceParts& parts, CallerProof caller, wire::PushChunksResponse* response)
      : parts_(parts), response_(response), caller_(std::move(caller)) {
    StartRead(&chunk_);
  }

  void OnReadDone(bool ok) override {
    if (!ok) {  // the stream has ended; or it broke, and nobody reads the response
      response_->set_bytes_received(bytes_received_);
      Finish(grpc::Status::OK);
      return;
    }
    if (const absl::Status status = Store(); !status.ok()) {
      parts_.metrics->OnRejected(status);
      Finish(rpc::ToGrpc(status));
      return;
    }
    StartRead(&chunk_);
  }

  void OnDone() override { delete this; }

 private:
  absl::Status Store() {
    caller_.run_id = chunk_.run_id();
    TANDEM_RETURN_IF_ERROR(parts_.ownership->CheckOwner(caller_));
    const std::string& data = chunk_.data();
    TANDEM_RETURN_IF_ERROR(parts_.weights->Receive({chunk_.version()}, chunk_.tensor_index(),
                                                   chunk_.offset_bytes(),
                                                   std::as_bytes(std::span(data))));
    bytes_received_ += static_cast<int64_t>(data.size());
    return absl::OkStatus();
  }

  const ServiceParts parts_;
  wire::PushChunksResponse* const response_;
  CallerProof caller_;  // with the run that the last chunk names
  wire::PushChunksRequest chunk_;
  int64_t bytes_received_ = 0;
};

class WeightServiceImpl : public wire::WeightService::CallbackService {
 public:
  WeightServiceImpl(const ServiceParts& parts, WorkerThread* worker, WorkerThread* push_worker)
      : parts_(parts), worker_(worker), push_worker_(push_worker) {}

  grpc::ServerUnaryReactor* InitTransfer(grpc::CallbackServerContext* context,
                                         const wire::InitTransferRequest* request,
                                         wire::InitTransferResponse* response) override {
    return On(worker_, context,
              [this, request, response, who = ProofOf(*context, request->run_id())] {
                return Init(who, *request, response);
              });
  }

  grpc::ServerUnaryReactor* BeginUpdate(grpc::CallbackServerContext* context,
                                        const wire::BeginUpdateRequest* request,
                                        wire::BeginUpdateResponse* response) override {
    return On(
        worker_, context,
        [this, request, response, who = ProofOf(*context, request->run_id())]() -> absl::Status {
          TANDEM_RETURN_IF_ERROR(parts_.ownership->CheckEpoch(who, request->epoch()));
          TANDEM_ASSIGN_OR_RETURN(const std::vector<TensorSpec> tensors,
                                  ManifestFromWire(request->manifest()));
          TANDEM_ASSIGN_OR_RETURN(const auto delta, DeltaFromWire(*request));
          const WeightVersion version = {request->manifest().version()};
          if (delta && request->on_device()) {
            return InvalidArgument("a delta cannot arrive on the device: send it dense");
          }
          const bool is_adapter = request->has_adapter();
          if (is_adapter && (delta || request->on_device())) {
            return InvalidArgument("an adapter is sent dense, and not on the device");
          }
          const AdapterHeader adapter = {request->adapter().rank(), request->adapter().scaling(),
                                         request->adapter().dither(),
                                         request->adapter().base_digest()};
          TANDEM_ASSIGN_OR_RETURN(
              const std::vector<int64_t> sizes,
              is_adapter ? parts_.weights->BeginAdapter(version, adapter, tensors)
                         : parts_.weights->Begin(version, tensors, delta, request->on_device()));
          response->set_staging_bytes(std::accumulate(sizes.begin(), sizes.end(), int64_t{0}));
          return absl::OkStatus();
        });
  }

  grpc::ServerReadReactor<wire::PushChunksRequest>* PushChunks(
      grpc::CallbackServerContext* context, wire::PushChunksResponse* response) override {
    return new PushCall(parts_, ProofOf(*context, ""), response);
  }

  grpc::ServerUnaryReactor* JoinPushGroup(grpc::CallbackServerContext* context,
                                          const wire::JoinPushGroupRequest* request,
                                          wire::JoinPushGroupResponse* response) override {
    return On(
        push_worker_, context,
        [this, request, response, who = ProofOf(*context, request->run_id()),
         peer = context->peer()]() -> absl::Status {
          const auto check = [&] { return parts_.ownership->CheckEpoch(who, request->epoch()); };
          TANDEM_RETURN_IF_ERROR(check());
          const auto backend = request->over_nccl() ? comm::Backend::kNccl : comm::Backend::kGloo;
          response->set_takes_on_device(parts_.weights->TakesOnDevice(comm::DeviceOf(backend)));
          // Join checks once more: an epoch that begins meanwhile calls Leave before this Join.
          return parts_.push_seat->Join(
              {.run_id = request->run_id(),
               .epoch = request->epoch(),
               .membership = request->membership(),
               .backend = backend,
               .store_host = request->store_host().empty() ? PeerHost(peer) : request->store_host(),
               .store_port = request->store_port(),
               .rank = request->rank(),
               .members = {request->members().begin(), request->members().end()},
               .deadline = absl::Milliseconds(request->deadline_ms())},
              check);
        });
  }

  grpc::ServerUnaryReactor* ReceiveBuckets(grpc::CallbackServerContext* context,
                                           const wire::ReceiveBucketsRequest* request,
                                           wire::ReceiveBucketsResponse* response) override {
    return On(push_worker_, context,
              [this, request, response, who = ProofOf(*context, request->run_id())] {
                return Receive(who, *request, response);
              });
  }

  grpc::ServerUnaryReactor* CommitUpdate(grpc::CallbackServerContext* context,
                                         const wire::CommitUpdateRequest* request,
                                         wire::CommitUpdateResponse* response) override {
    return On(worker_, context,
              [this, request, response, who = ProofOf(*context, request->run_id()),
               trace = TraceOf(*context)] {
                ScopedSpan span({parts_.tracer, trace}, "commit_update", SpanKind::kServer);
                span.Set("tandem.weight_version", request->version());
                const absl::Status status = Commit(who, *request, response);
                span.SetError(std::string(status.message()));
                return status;
              });
  }

  grpc::ServerUnaryReactor* AbortUpdate(grpc::CallbackServerContext* context,
                                        const wire::AbortUpdateRequest* request,
                                        wire::AbortUpdateResponse* response) override {
    const absl::Status owner = parts_.ownership->CheckOwner(ProofOf(*context, request->run_id()));
    if (owner.ok()) {
      parts_.push_seat->Abort("the trainer aborted the push");
      response->set_aborted(parts_.weights->Abort({request->version()}));
    }
    return Answer(context, owner);
  }

  grpc::ServerUnaryReactor* Pause(grpc::CallbackServerContext* context,
                                  const wire::PauseRequest* request,
                                  wire::PauseResponse*) override {
    const absl::Status owner = parts_.ownership->CheckOwner(ProofOf(*context, request->run_id()));
    if (!owner.ok()) return Answer(context, owner);
    grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
    parts_.engine->Pause([this, reactor](const absl::Status& done) { End(reactor, done); });
    return reactor;
  }

  grpc::ServerUnaryReactor* Resume(grpc::CallbackServerContext* context,
                                   const wire::ResumeRequest* request,
                                   wire::ResumeResponse*) override {
    const absl::Status owner = parts_.ownership->CheckOwner(ProofOf(*context, request->run_id()));
    if (!owner.ok()) return Answer(context, owner);
    grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
    parts_.engine->Resume([this, reactor](const absl::Status& done) { End(reactor, done); });
    return reactor;
  }

  grpc::ServerUnaryReactor* GetWeightInfo(grpc::CallbackServerContext* context,
                                          const wire::GetWeightInfoRequest* request,
                                          wire::GetWeightInfoResponse* response) override {
    const auto standing = parts_.ownership->CheckUser(ProofOf(*context, request->run_id()));
    if (!standing.ok()) return Answer(context, standing.status());
    const std::shared_ptr<const WeightReceiver::Live> live = parts_.weights->live();
    response->set_live_version(live->version.value);
    response->set_epoch(live->epoch);
    DigestsToWire(*live, response->mutable_live_digests());
    for (const auto& [name, digest] : live->served) {
      wire::TensorDigest* one = response->add_served_digests();
      one->set_name(name);
      one->set_xxh3_128(digest);
    }
    MergedToWire(*live, response->mutable_merged_digests(), response->mutable_effects());
    response->set_staged_version(parts_.weights->staged_version().value);
    response->set_takes_delta(parts_.weights->takes_delta());
    if (!parts_.model->stored.empty()) response->set_stored_formats(parts_.model->weights);
    for (const TensorSpec& tensor : parts_.weights->tensors()) {
      wire::TensorSpec* one = response->add_tensors();
      one->set_name(tensor.name);
      one->set_dtype(std::string(DTypeName(tensor.dtype)));
      for (const int64_t size : tensor.shape) one->add_shape(size);
    }
    return Answer(context, absl::OkStatus());
  }

 private:
  // Counts refused calls.
  void End(grpc::ServerUnaryReactor* reactor, const absl::Status& status) {
    if (!status.ok()) parts_.metrics->OnRejected(status);
    reactor->Finish(rpc::ToGrpc(status));
  }

  grpc::ServerUnaryReactor* Answer(grpc::CallbackServerContext* context,
                                   const absl::Status& status) {
    grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
    End(reactor, status);
    return reactor;
  }

  // Request and response live until the reactor is finished.
  grpc::ServerUnaryReactor* On(WorkerThread* worker, grpc::CallbackServerContext* context,
                               std::function<absl::Status()> work) {
    grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
    const bool taken =
        worker->Run([this, reactor, work = std::move(work)] { End(reactor, work()); });
    if (!taken) {
      End(reactor,
          ResourceExhausted("more than ", WorkerThread::kMaxWaiting, " weight calls are waiting"));
    }
    return reactor;
  }

  absl::Status Init(const CallerProof& who, const wire::InitTransferRequest& request,
                    wire::InitTransferResponse* response) {
    if (request.release()) {
      TANDEM_RETURN_IF_ERROR(parts_.ownership->Release(who));
      parts_.weights->Abort(parts_.weights->staged_version());
      parts_.push_seat->Leave("the server was given back");
      parts_.groups->Forget(who.run_id, ScopeOf(who));
      parts_.engine->Resume(nullptr);  // a pause ends with the ownership that made it
      log::Info("released", {{"run_id", who.run_id}});
    } else {
      TANDEM_ASSIGN_OR_RETURN(const bool is_new,
                              parts_.ownership->Claim(who, request.epoch(), request.lease_ms()));
      if (is_new) {
        parts_.weights->StartEpoch(request.epoch());
        parts_.history->EpochBegan(request.run_id(), request.epoch());
        parts_.push_seat->Leave("another epoch began");
        parts_.groups->Forget(who.run_id, ScopeOf(who));
        parts_.groups->PutOthersBehind(who.run_id, ScopeOf(who));
        parts_.engine->Resume(nullptr);
        log::Info("claimed", {{"run_id", who.run_id}, {"epoch", request.epoch()}});
      }
    }
    response->set_live_version(parts_.weights->live()->version.value);
    response->set_epoch(request.epoch());
    return absl::OkStatus();
  }

  absl::Status Receive(const CallerProof& who, const wire::ReceiveBucketsRequest& request,
                       wire::ReceiveBucketsResponse* response) {
    TANDEM_RETURN_IF_ERROR(parts_.ownership->CheckEpoch(who, request.epoch()));
    if (request.bucket_bytes() < 1 || request.bucket_bytes() > kMaxBucketBytes) {
      return InvalidArgument("buckets of ", request.bucket_bytes(), " bytes: want 1 to ",
                             kMaxBucketBytes);
    }
    const WeightVersion version = {request.version()};
    TANDEM_ASSIGN_OR_RETURN(const std::vector<int64_t> sizes, parts_.weights->StagedSizes(version));
    TANDEM_ASSIGN_OR_RETURN(const std::unique_ptr<BucketStore> store,
                            parts_.weights->Buckets(version));
    TANDEM_RETURN_IF_ERROR(parts_.push_seat->Receive(
        request.membership(), PlanBuckets(sizes, request.bucket_bytes()), *store));
    response->set_bytes_received(std::accumulate(sizes.begin(), sizes.end(), int64_t{0}));
    return absl::OkStatus();
  }

  absl::Status Commit(const CallerProof& who, const wire::CommitUpdateRequest& request,
                      wire::CommitUpdateResponse* response) {
    TANDEM_RETURN_IF_ERROR(parts_.ownership->CheckEpoch(who, request.epoch()));
    DigestMap digests, word_sums;
    for (const wire::TensorDigest& digest : request.digests()) {
      digests[digest.name()] = digest.xxh3_128();
      if (!digest.word_sums().empty()) word_sums[digest.name()] = digest.word_sums();
    }
    const auto report = parts_.weights->Commit({request.version()}, digests, word_sums);
    if (!report.ok()) {
      parts_.metrics->OnCommitFailed(report.status());
      log::Warning("weight commit refused", {{"version", request.version()},
                                             {"error", std::string(report.status().message())}});
      return report.status();
    }
    parts_.metrics->OnCommit(*report);
    parts_.history->Committed(report->live.epoch, report->live.version, report->live.digests);
    response->set_live_version(report->live.version.value);
    DigestsToWire(report->live, response->mutable_live_digests());
    MergedToWire(report->live, response->mutable_merged_digests(), response->mutable_effects());
    response->set_verify_ms(report->verify_seconds * 1e3);
    response->set_pack_ms(report->pack_seconds * 1e3);
    response->set_pause_ms(report->pause_seconds * 1e3);
    log::Info("weights committed", {{"version", report->live.version.value},
                                    {"verify_ms", report->verify_seconds * 1e3},
                                    {"pack_ms", report->pack_seconds * 1e3},
                                    {"pause_ms", report->pause_seconds * 1e3}});
    return absl::OkStatus();
  }

  const ServiceParts parts_;
  WorkerThread* const worker_;
  WorkerThread* const push_worker_;
};

}  // namespace

std::unique_ptr<grpc::Service> MakeWeightService(const ServiceParts& parts, WorkerThread* worker,
                                                 WorkerThread* push_worker) {
  return std::make_unique<WeightServiceImpl>(parts, worker, push_worker);
}

}  // namespace tandem::rollout
