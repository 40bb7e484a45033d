#include "trainer/weight_push/weight_remote.h"

#include <grpcpp/grpcpp.h>

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/base/fail_point.h"
#include "common/base/log.h"
#include "common/base/mutex.h"
#include "common/base/status_macros.h"
#include "common/observe/tracer.h"
#include "common/rpc/caller_channel.h"
#include "common/rpc/grpc_call.h"
#include "proto/rollout.grpc.pb.h"
#include "proto/weights.grpc.pb.h"

namespace tandem::trainer {
namespace {

namespace wire = ::tandem::weights::v1;

constexpr absl::Duration kQuick = absl::Seconds(10);  // calls that move no weights
constexpr absl::Duration kSlack =
    absl::Seconds(15);  // to name who failed an operation of the group

template <typename Digests>
void Read(const Digests& digests, RemoteWeights* weights) {
  for (const auto& digest : digests) {
    weights->digests[digest.name()] = digest.xxh3_128();
    if (!digest.word_sums().empty()) weights->word_sums[digest.name()] = digest.word_sums();
  }
}

wire::TensorForm::Encoding ToWire(TensorEncoding encoding) {
  constexpr wire::TensorForm::Encoding kEncodings[] = {wire::TensorForm::ENCODING_DENSE,
                                                       wire::TensorForm::ENCODING_MASK,
                                                       wire::TensorForm::ENCODING_GAPS};
  return kEncodings[static_cast<size_t>(encoding)];
}

using Weights = wire::WeightService;
using Rollout = rollout::v1::RolloutService;

}  // namespace

absl::StatusOr<WireBytes> WeightPayload::wire(size_t i) const {
  if (base && deltas[i].encoding != TensorEncoding::kDense)
    return WireBytes{deltas[i].bytes, nullptr};
  TANDEM_ASSIGN_OR_RETURN(const HostTensor tensor, tensors[i].read());
  return WireBytes{tensor.bytes, tensor.owner};
}

int64_t WeightPayload::wire_size(size_t i) const {
  if (!base || deltas[i].encoding == TensorEncoding::kDense) return tensors[i].spec.num_bytes();
  return static_cast<int64_t>(deltas[i].bytes.size());
}

std::vector<int64_t> WeightPayload::wire_sizes() const {
  std::vector<int64_t> sizes;
  for (size_t i = 0; i < tensors.size(); ++i) {
    sizes.push_back(wire_size(i));
  }
  return sizes;
}

// Reads what a GetWeightInfoResponse or a CommitUpdateResponse says of an adapter.
template <typename Response>
void ReadMerged(const Response& response, RemoteWeights* live) {
  for (const wire::TensorDigest& digest : response.merged_digests()) {
    live->merged[digest.name()] = digest.xxh3_128();
  }
  for (const wire::ModuleEffect& module : response.effects()) {
    live->applied.push_back(
        {module.weight(),
         {module.squared_change(), module.arrived(), module.squared_loss(), module.changed()}});
  }
}

struct WeightRemote::Impl {
  Impl(rpc::CallerChannel& calls, const std::string& run, absl::Duration of_long_calls)
      : channel(calls), run_id(run), timeout(of_long_calls) {}

  // One unary call.
  template <typename Stub, typename Request, typename Response>
  absl::StatusOr<Response> Call(grpc::Status (Stub::*method)(grpc::ClientContext*, const Request&,
                                                             Response*),
                                const char* what, absl::Duration deadline, const Request& request) {
    grpc::ClientContext context;
    rpc::SetDeadline(context, deadline);
    channel.Identify(&context);
    if (const std::string trace = Traceparent(); !trace.empty()) {
      context.AddMetadata(kTraceparent, trace);
    }
    const auto used = channel.current();
    Response response;
    const grpc::Status status = (Stub(used).*method)(&context, request, &response);
    channel.Ended(used, status);
    TANDEM_RETURN_IF_ERROR(rpc::FromGrpc(status, At(what)));
    return response;
  }

  absl::StatusOr<rollout::v1::GetInfoResponse> State() {
    return Call(&Rollout::Stub::GetInfo, "GetInfo", kQuick, rollout::v1::GetInfoRequest());
  }

  std::string Traceparent() {
    MutexLock lock(&mu);
    return traceparent;
  }

  std::string At(const char* what) const { return absl::StrCat(what, " at ", channel.address()); }

  rpc::CallerChannel& channel;
  const std::string run_id;
  const absl::Duration timeout;

  Mutex mu;
  std::string traceparent ABSL_GUARDED_BY(mu);
};

WeightRemote::WeightRemote(rpc::CallerChannel* channel, const std::string& run_id,
                           absl::Duration timeout)
    : impl_(std::make_unique<Impl>(*channel, run_id, timeout)) {}

WeightRemote::~WeightRemote() = default;

const std::string& WeightRemote::address() const { return impl_->channel.address(); }

void WeightRemote::SetTraceparent(const std::string& header) {
  MutexLock lock(&impl_->mu);
  impl_->traceparent = header;
}

absl::StatusOr<RemoteWeights> WeightRemote::Info() {
  wire::GetWeightInfoRequest request;
  request.set_run_id(impl_->run_id);
  TANDEM_ASSIGN_OR_RETURN(
      const wire::GetWeightInfoResponse response,
      impl_->Call(&Weights::Stub::GetWeightInfo, "GetWeightInfo", kQuick, request));
  if (response.tensors().empty()) return Internal("the server names no tensors");
  RemoteWeights live = {.version = {response.live_version()},
                        .epoch = response.epoch(),
                        .takes_delta = response.takes_delta(),
                        .stored_formats = response.stored_formats()};
  Read(response.live_digests(), &live);
  ReadMerged(response, &live);
  TANDEM_ASSIGN_OR_RETURN(live.dtype, DTypeFromName(response.tensors(0).dtype()));
  return live;
}

absl::StatusOr<std::string> WeightRemote::Owner() {
  TANDEM_ASSIGN_OR_RETURN(const rollout::v1::GetInfoResponse state, impl_->State());
  return state.owner_run_id();
}

int64_t WeightRemote::HighestEpoch() {
  int64_t highest = 0;
  if (const auto info = Info(); info.ok()) highest = info->epoch;
  if (const auto state = impl_->State(); state.ok()) {
    highest = std::max(highest, state->weight_epoch());
  }
  return highest;
}

absl::Status WeightRemote::InitTransfer(int64_t epoch, absl::Duration lease, bool release) {
  wire::InitTransferRequest request;
  request.set_run_id(impl_->run_id);
  request.set_epoch(epoch);
  request.set_lease_ms(absl::ToInt64Milliseconds(lease));
  request.set_release(release);
  return impl_->Call(&Weights::Stub::InitTransfer, "InitTransfer", kQuick, request).status();
}

absl::Status WeightRemote::Begin(int64_t epoch, const WeightPayload& payload) {
  wire::BeginUpdateRequest request;
  request.set_run_id(impl_->run_id);
  request.set_epoch(epoch);
  request.mutable_manifest()->set_version(payload.version.value);
  for (const TensorSource& tensor : payload.tensors) {
    wire::TensorSpec* const spec = request.mutable_manifest()->add_tensors();
    spec->set_name(tensor.spec.name);
    spec->set_dtype(std::string(DTypeName(tensor.spec.dtype)));
    for (const int64_t size : tensor.spec.shape) spec->add_shape(size);
  }
  request.set_on_device(payload.on_device != nullptr);
  if (payload.adapter != nullptr) {
    wire::Adapter* const adapter = request.mutable_adapter();
    adapter->set_rank(payload.adapter->rank);
    adapter->set_scaling(payload.adapter->scaling);
    adapter->set_dither(payload.adapter->dither);
    adapter->set_base_digest(payload.adapter->base_digest);
  }
  if (payload.base) {
    request.mutable_delta()->set_base_version(payload.base->value);
    for (size_t i = 0; i < payload.tensors.size(); ++i) {
      wire::TensorForm* const form = request.mutable_delta()->add_forms();
      form->set_encoding(ToWire(payload.deltas[i].encoding));
      form->set_num_bytes(payload.wire_size(i));
    }
  }
  return impl_->Call(&Weights::Stub::BeginUpdate, "BeginUpdate", impl_->timeout, request).status();
}

absl::Status WeightRemote::SendChunks(const WeightPayload& payload, int64_t chunk_bytes,
                                      int64_t* num_bytes) {
  grpc::ClientContext context;
  rpc::SetDeadline(context, impl_->timeout);
  impl_->channel.Identify(&context);
  wire::PushChunksResponse response;
  const auto channel = impl_->channel.current();
  const auto stub = Weights::NewStub(channel);
  const auto writer = stub->PushChunks(&context, &response);
  wire::PushChunksRequest chunk;
  chunk.set_run_id(impl_->run_id);
  chunk.set_version(payload.version.value);
  bool writable = true;
  for (size_t i = 0; i < payload.tensors.size() && writable; ++i) {
    const absl::StatusOr<WireBytes> wire = payload.wire(i);
    if (!wire.ok()) {
      context.TryCancel();
      writer->Finish();
      return wire.status();
    }
    const std::span<const std::byte> bytes = wire->bytes;
    chunk.set_tensor_index(static_cast<int32_t>(i));
    for (size_t offset = 0; offset < bytes.size() && writable;) {
      const size_t size = std::min(static_cast<size_t>(chunk_bytes), bytes.size() - offset);
      chunk.set_offset_bytes(static_cast<int64_t>(offset));
      chunk.set_data(bytes.data() + offset, size);
      writable = writer->Write(chunk);
      FailPoint("publisher: chunk");
      offset += size;
      *num_bytes += static_cast<int64_t>(size);
    }
  }
  writer->WritesDone();
  const grpc::Status status = writer->Finish();
  impl_->channel.Ended(channel, status);
  return rpc::FromGrpc(status, impl_->At("PushChunks"));
}

absl::StatusOr<bool> WeightRemote::JoinPushGroup(const comm::PushSeatOffer& offer) {
  wire::JoinPushGroupRequest request;
  request.set_run_id(offer.run_id);
  request.set_epoch(offer.epoch);
  request.set_membership(offer.membership);
  request.set_store_host(offer.store_host);
  request.set_store_port(offer.store_port);
  request.set_over_nccl(offer.backend == comm::Backend::kNccl);
  request.set_rank(offer.rank);
  for (const std::string& member : offer.members) request.add_members(member);
  request.set_deadline_ms(absl::ToInt64Milliseconds(offer.deadline));
  TANDEM_ASSIGN_OR_RETURN(const wire::JoinPushGroupResponse response,
                          impl_->Call(&Weights::Stub::JoinPushGroup, "JoinPushGroup",
                                      offer.deadline + kSlack, request));
  return response.takes_on_device();
}

absl::Status WeightRemote::ReceiveBuckets(int64_t epoch, int64_t membership, WeightVersion version,
                                          int64_t bucket_bytes) {
  wire::ReceiveBucketsRequest request;
  request.set_run_id(impl_->run_id);
  request.set_epoch(epoch);
  request.set_membership(membership);
  request.set_version(version.value);
  request.set_bucket_bytes(bucket_bytes);
  return impl_
      ->Call(&Weights::Stub::ReceiveBuckets, "ReceiveBuckets", impl_->timeout + kSlack, request)
      .status();
}

absl::StatusOr<CommitReply> WeightRemote::Commit(int64_t epoch, WeightVersion version,
                                                 const DigestMap& digests,
                                                 const DigestMap& word_sums) {
  wire::CommitUpdateRequest request;
  request.set_run_id(impl_->run_id);
  request.set_epoch(epoch);
  request.set_version(version.value);
  for (const auto& [name, digest] : digests) {
    wire::TensorDigest* const entry = request.add_digests();
    entry->set_name(name);
    entry->set_xxh3_128(digest);
    const auto sums = word_sums.find(name);
    if (sums != word_sums.end()) entry->set_word_sums(sums->second);
  }
  TANDEM_ASSIGN_OR_RETURN(
      const wire::CommitUpdateResponse response,
      impl_->Call(&Weights::Stub::CommitUpdate, "CommitUpdate", impl_->timeout, request));
  CommitReply reply{.live = {.version = {response.live_version()}, .epoch = epoch},
                    .verify_ms = response.verify_ms(),
                    .pack_ms = response.pack_ms(),
                    .pause_ms = response.pause_ms()};
  Read(response.live_digests(), &reply.live);
  ReadMerged(response, &reply.live);
  return reply;
}

void WeightRemote::Abort(WeightVersion version) {
  wire::AbortUpdateRequest request;
  request.set_run_id(impl_->run_id);
  request.set_version(version.value);
  const auto response = impl_->Call(&Weights::Stub::AbortUpdate, "AbortUpdate", kQuick, request);
  if (!response.ok()) {
    log::Warning("a push could not be aborted", {{"reason", response.status().ToString()}});
  }
}

}  // namespace tandem::trainer
