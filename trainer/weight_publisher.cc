#include "trainer/weight_publisher.h"

#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <set>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/mutex.h"
#include "common/base/status_macros.h"
#include "proto/rollout.grpc.pb.h"
#include "proto/weights.grpc.pb.h"

namespace tandem::trainer {
namespace {

using weights::v1::WeightService;

constexpr double kQuickTimeoutSeconds = 10;  // calls that move no weights

struct Remote {
  std::string address;
  std::unique_ptr<WeightService::Stub> weights;
  std::unique_ptr<rollout::v1::RolloutService::Stub> rollout;
};

Remote Connect(const std::string& address) {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 100);
  // gRPC's deadline of one attempt to connect, whatever its name: a busy machine needs seconds.
  arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, 5000);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 1000);
  // Apart from the rollout client's connection: a push must not queue behind completions.
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  arguments.SetMaxReceiveMessageSize(64 << 20);
  const auto channel =
      grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(), arguments);
  return {address, WeightService::NewStub(channel), rollout::v1::RolloutService::NewStub(channel)};
}

void SetDeadline(grpc::ClientContext& context, double seconds) {
  context.set_deadline(std::chrono::system_clock::now() +
                       std::chrono::milliseconds(static_cast<int64_t>(seconds * 1000)));
}

absl::Status FromGrpc(const grpc::Status& status, const Remote& remote, const char* what) {
  if (status.ok()) return absl::OkStatus();
  return absl::Status(static_cast<absl::StatusCode>(status.error_code()),
                      absl::StrCat(what, " at ", remote.address, ": ", status.error_message()));
}

template <typename Digests>
DigestMap ToMap(const Digests& digests) {
  DigestMap map;
  for (const auto& digest : digests) map[digest.name()] = digest.xxh3_128();
  return map;
}

// "a, b and 3 more" of the tensors whose digests differ.
std::string Differing(const DigestMap& want, const DigestMap& got) {
  std::string names;
  int64_t count = 0;
  for (const auto& [name, digest] : want) {
    const auto it = got.find(name);
    if (it != got.end() && it->second == digest) continue;
    if (++count <= 2) absl::StrAppend(&names, names.empty() ? "" : ", ", name);
  }
  if (count > 2) absl::StrAppend(&names, " and ", count - 2, " more");
  return names.empty() ? "unknown tensors" : names;
}

}  // namespace

struct WeightPublisher::Impl {
  absl::Status InitTransfer(const Remote& remote, bool release);
  absl::StatusOr<weights::v1::GetWeightInfoResponse> Info(const Remote& remote);
  absl::Status Begin(const Remote& remote);
  absl::Status SendChunks(const Remote& remote, ServerPush* push);
  absl::Status Commit(const Remote& remote, ServerPush* push);
  void Abort(const Remote& remote);
  absl::Status Attempt(const Remote& remote, ServerPush* push);
  void RenewLeases();

  WeightPublisherOptions options;
  std::string run_id;
  std::vector<Remote> remotes;
  int64_t epoch = 0;  // 0: nothing claimed yet
  WeightVersion version;
  std::vector<HostTensor> tensors;
  DigestMap digests;
  std::thread renewer;

  Mutex mu;
  CondVar stop_changed;
  bool stopping ABSL_GUARDED_BY(mu) = false;
  std::set<int> claimed ABSL_GUARDED_BY(mu);
  int64_t renewed_epoch ABSL_GUARDED_BY(mu) = 0;
};

void BindOptions(OptionBinder& binder, WeightPublisherOptions& options) {
  binder.Number("timeout_seconds", &options.timeout_seconds, {.min = 0, .exclusive_min = true}, "s",
                "deadline of sending, and of committing, one version at one server");
  binder.Number("lease_seconds", &options.lease_seconds, {.min = 1}, "s",
                "a server is free again this long after the trainer died");
  binder.Integer("chunk_bytes", &options.chunk_bytes, {.min = 1024, .max = 3 << 20}, "bytes",
                 "one message of the stream");
  binder.Integer("max_attempts", &options.max_attempts, {.min = 1}, "pushes",
                 "of one version to one server; then it is out of rotation");
  binder.Integer("hold_back_versions", &options.hold_back_versions, {.min = 0, .max = 64}, "versions",
                 "servers are given weights exactly this much older than the trainer's, to study "
                 "staleness; needs max_staleness of at least as many");
  binder.Integer("debug_skip_push_at_step", &options.debug_skip_push_at_step, {.min = 0}, "step",
                 "fault for tests: claim this version was delivered without sending it; 0: off");
}

WeightPublisher::WeightPublisher(const std::vector<std::string>& addresses,
                                 const std::string& run_id, const WeightPublisherOptions& options)
    : impl_(std::make_unique<Impl>()) {
  impl_->options = options;
  impl_->run_id = run_id;
  for (const std::string& address : addresses) impl_->remotes.push_back(Connect(address));
  impl_->renewer = std::thread([this] { impl_->RenewLeases(); });
}

WeightPublisher::~WeightPublisher() { Release(); }

absl::Status WeightPublisher::Impl::InitTransfer(const Remote& remote, bool release) {
  grpc::ClientContext context;
  SetDeadline(context, kQuickTimeoutSeconds);
  weights::v1::InitTransferRequest request;
  request.set_run_id(run_id);
  {
    MutexLock lock(&mu);
    request.set_epoch(renewed_epoch);
  }
  request.set_lease_ms(static_cast<int64_t>(options.lease_seconds * 1000));
  request.set_release(release);
  weights::v1::InitTransferResponse response;
  return FromGrpc(remote.weights->InitTransfer(&context, request, &response), remote,
                  "InitTransfer");
}

absl::StatusOr<weights::v1::GetWeightInfoResponse> WeightPublisher::Impl::Info(
    const Remote& remote) {
  grpc::ClientContext context;
  SetDeadline(context, kQuickTimeoutSeconds);
  weights::v1::GetWeightInfoRequest request;
  request.set_run_id(run_id);
  weights::v1::GetWeightInfoResponse response;
  TANDEM_RETURN_IF_ERROR(FromGrpc(remote.weights->GetWeightInfo(&context, request, &response),
                                  remote, "GetWeightInfo"));
  return response;
}

void WeightPublisher::Impl::RenewLeases() {
  const auto period = std::chrono::duration_cast<std::chrono::steady_clock::duration>(
      std::chrono::duration<double>(options.lease_seconds / 3));
  for (;;) {
    std::set<int> servers;
    {
      const auto until = std::chrono::steady_clock::now() + period;
      MutexLock lock(&mu);
      while (!stopping && stop_changed.WaitUntil(&mu, until)) {
      }
      if (stopping) return;
      servers = claimed;
    }
    for (const int server : servers) {
      const absl::Status status = InitTransfer(remotes[static_cast<size_t>(server)], false);
      if (!status.ok()) {
        log::Warning("a lease could not be renewed", {{"reason", status.ToString()}});
      }
    }
  }
}

absl::StatusOr<DType> WeightPublisher::ServerDType(int server) {
  TANDEM_ASSIGN_OR_RETURN(const auto info,
                          impl_->Info(impl_->remotes[static_cast<size_t>(server)]));
  if (info.tensors().empty()) return absl::InternalError("the server names no tensors");
  return DTypeFromName(info.tensors(0).dtype());
}

absl::Status WeightPublisher::Claim(int server) {
  const Remote& remote = impl_->remotes[static_cast<size_t>(server)];
  if (impl_->epoch == 0) {
    int64_t highest = 0;
    for (const Remote& each : impl_->remotes) {
      const auto info = impl_->Info(each);
      if (info.ok()) highest = std::max(highest, info->epoch());
      grpc::ClientContext context;
      SetDeadline(context, kQuickTimeoutSeconds);
      rollout::v1::GetInfoResponse state;
      if (each.rollout->GetInfo(&context, {}, &state).ok()) {
        highest = std::max(highest, state.weight_epoch());
      }
    }
    // Above what a trainer of this run that died before its first push may have claimed.
    impl_->epoch = highest + 2;
    MutexLock lock(&impl_->mu);
    impl_->renewed_epoch = impl_->epoch;
  }
  TANDEM_RETURN_IF_ERROR(impl_->InitTransfer(remote, false));
  MutexLock lock(&impl_->mu);
  impl_->claimed.insert(server);
  return absl::OkStatus();
}

void WeightPublisher::SetWeights(WeightVersion version, std::vector<HostTensor> tensors) {
  impl_->version = version;
  impl_->tensors = std::move(tensors);
  impl_->digests = DigestTensors(impl_->tensors);
}

absl::Status WeightPublisher::Impl::Begin(const Remote& remote) {
  grpc::ClientContext context;
  SetDeadline(context, options.timeout_seconds);
  weights::v1::BeginUpdateRequest request;
  request.set_run_id(run_id);
  request.set_epoch(epoch);
  request.mutable_manifest()->set_version(version.value);
  for (const HostTensor& tensor : tensors) {
    weights::v1::TensorSpec* const spec = request.mutable_manifest()->add_tensors();
    spec->set_name(tensor.spec.name);
    spec->set_dtype(std::string(DTypeName(tensor.spec.dtype)));
    for (const int64_t size : tensor.spec.shape) spec->add_shape(size);
  }
  weights::v1::BeginUpdateResponse response;
  return FromGrpc(remote.weights->BeginUpdate(&context, request, &response), remote, "BeginUpdate");
}

absl::Status WeightPublisher::Impl::SendChunks(const Remote& remote, ServerPush* push) {
  grpc::ClientContext context;
  SetDeadline(context, options.timeout_seconds);
  weights::v1::PushChunksResponse response;
  const auto writer = remote.weights->PushChunks(&context, &response);
  weights::v1::PushChunksRequest chunk;
  chunk.set_run_id(run_id);
  chunk.set_version(version.value);
  bool writable = true;
  for (size_t i = 0; i < tensors.size() && writable; ++i) {
    const std::span<const std::byte> bytes = tensors[i].bytes;
    chunk.set_tensor_index(static_cast<int32_t>(i));
    for (size_t offset = 0; offset < bytes.size() && writable;) {
      const size_t size = std::min(static_cast<size_t>(options.chunk_bytes), bytes.size() - offset);
      chunk.set_offset_bytes(static_cast<int64_t>(offset));
      chunk.set_data(bytes.data() + offset, size);
      writable = writer->Write(chunk);
      offset += size;
      push->bytes += static_cast<int64_t>(size);
    }
  }
  writer->WritesDone();
  return FromGrpc(writer->Finish(), remote, "PushChunks");
}

absl::Status WeightPublisher::Impl::Commit(const Remote& remote, ServerPush* push) {
  grpc::ClientContext context;
  SetDeadline(context, options.timeout_seconds);
  weights::v1::CommitUpdateRequest request;
  request.set_run_id(run_id);
  request.set_epoch(epoch);
  request.set_version(version.value);
  for (const auto& [name, digest] : digests) {
    weights::v1::TensorDigest* const entry = request.add_digests();
    entry->set_name(name);
    entry->set_xxh3_128(digest);
  }
  weights::v1::CommitUpdateResponse response;
  TANDEM_RETURN_IF_ERROR(
      FromGrpc(remote.weights->CommitUpdate(&context, request, &response), remote, "CommitUpdate"));
  const DigestMap live = ToMap(response.live_digests());
  if (response.live_version() != version.value || live != digests) {
    return absl::DataLossError(absl::StrCat(remote.address, " committed version ", version.value,
                                            " and reports version ", response.live_version(),
                                            " live; digests differ in ", Differing(digests, live)));
  }
  push->pause_ms = response.pause_ms();
  push->digest = CombinedDigest(live);
  push->live_epoch = epoch;
  return absl::OkStatus();
}

void WeightPublisher::Impl::Abort(const Remote& remote) {
  grpc::ClientContext context;
  SetDeadline(context, kQuickTimeoutSeconds);
  weights::v1::AbortUpdateRequest request;
  request.set_run_id(run_id);
  request.set_version(version.value);
  weights::v1::AbortUpdateResponse response;
  const grpc::Status status = remote.weights->AbortUpdate(&context, request, &response);
  if (!status.ok()) {
    log::Warning("a push could not be aborted",
                 {{"server", remote.address}, {"reason", status.error_message()}});
  }
}

absl::Status WeightPublisher::Impl::Attempt(const Remote& remote, ServerPush* push) {
  // A commit whose reply was lost, or a server that loaded the same file, has them already.
  TANDEM_ASSIGN_OR_RETURN(const auto info, Info(remote));
  const DigestMap live = ToMap(info.live_digests());
  if (info.live_version() == version.value && live == digests) {
    push->skipped = true;
    push->digest = CombinedDigest(live);
    push->live_epoch = info.epoch();
    return absl::OkStatus();
  }
  push->bytes = 0;
  TANDEM_RETURN_IF_ERROR(Begin(remote));
  absl::Status status = SendChunks(remote, push);
  if (status.ok()) status = Commit(remote, push);
  if (!status.ok()) Abort(remote);
  return status;
}

ServerPush WeightPublisher::PushTo(int server) {
  const Remote& remote = impl_->remotes[static_cast<size_t>(server)];
  ServerPush push = {.server = server};
  const double start = MonotonicSeconds();
  for (int64_t attempt = 0; attempt < impl_->options.max_attempts; ++attempt) {
    push.status = impl_->Attempt(remote, &push);
    if (push.status.ok() || push.status.code() == absl::StatusCode::kInvalidArgument ||
        push.status.code() == absl::StatusCode::kUnavailable) {
      break;
    }
    log::Warning("a weight push failed",
                 {{"server", remote.address}, {"reason", push.status.ToString()}});
  }
  push.seconds = MonotonicSeconds() - start;
  return push;
}

std::vector<ServerPush> WeightPublisher::Publish(const std::vector<int>& servers) {
  std::vector<ServerPush> pushes(servers.size());
  const int64_t skip = impl_->options.debug_skip_push_at_step;
  if (skip > 0 && impl_->version.value == skip) {
    for (size_t i = 0; i < servers.size(); ++i) {
      pushes[i] = {.server = servers[i],
                   .live_epoch = impl_->epoch,
                   .digest = CombinedDigest(impl_->digests)};
    }
    return pushes;
  }
  std::vector<std::thread> others;
  for (size_t i = 1; i < servers.size(); ++i) {
    others.emplace_back([&, i] { pushes[i] = PushTo(servers[i]); });
  }
  if (!servers.empty()) pushes[0] = PushTo(servers[0]);
  for (std::thread& thread : others) thread.join();
  return pushes;
}

absl::Status WeightPublisher::Verify(int server) {
  const Remote& remote = impl_->remotes[static_cast<size_t>(server)];
  const auto info = impl_->Info(remote);
  if (!info.ok()) return absl::UnavailableError(info.status().message());
  const DigestMap live = ToMap(info->live_digests());
  if (info->live_version() == impl_->version.value && live == impl_->digests) {
    return absl::OkStatus();
  }
  grpc::ClientContext context;
  SetDeadline(context, kQuickTimeoutSeconds);
  rollout::v1::GetInfoResponse state;
  const grpc::Status status = remote.rollout->GetInfo(&context, {}, &state);
  if (!status.ok() || state.owner_run_id() != impl_->run_id) {
    return absl::UnavailableError(
        absl::StrCat(remote.address, " no longer belongs to this run: it was started anew"));
  }
  return absl::DataLossError(absl::StrCat(
      remote.address, " runs weight version ", info->live_version(), " (digest ",
      CombinedDigest(live), ") where version ", impl_->version.value, " (digest ",
      CombinedDigest(impl_->digests), ") was published; it differs in ",
      Differing(impl_->digests, live),
      ": the push was not delivered, and nothing this server samples may be trained on"));
}

void WeightPublisher::Release() {
  std::set<int> servers;
  {
    MutexLock lock(&impl_->mu);
    if (impl_->stopping) return;
    impl_->stopping = true;
    servers = impl_->claimed;
    impl_->stop_changed.NotifyAll();
  }
  impl_->renewer.join();
  for (const int server : servers) {
    const absl::Status status =
        impl_->InitTransfer(impl_->remotes[static_cast<size_t>(server)], true);
    if (!status.ok()) {
      log::Warning("a server could not be given back", {{"reason", status.ToString()}});
    }
  }
}

WeightVersion WeightPublisher::version() const { return impl_->version; }
const DigestMap& WeightPublisher::digests() const { return impl_->digests; }
int64_t WeightPublisher::epoch() const { return impl_->epoch; }

}  // namespace tandem::trainer
