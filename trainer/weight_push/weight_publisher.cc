#include "trainer/weight_push/weight_publisher.h"

#include <algorithm>
#include <map>
#include <set>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/clock.h"
#include "common/base/fail_point.h"
#include "common/base/log.h"
#include "common/base/mutex.h"
#include "common/base/status_macros.h"
#include "common/comm/group.h"
#include "common/process/thread_team.h"
#include "common/weights/digest.h"
#include "trainer/weight_push/weight_remote.h"

namespace tandem::trainer {
namespace {

constexpr double kLeaseSlackSeconds = 10;

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

// Another attempt would fare no better: the server is gone or hangs, serves another model, or knows
// this run by another secret.
bool IsFinal(const absl::Status& status) {
  return absl::IsInvalidArgument(status) || absl::IsUnavailable(status) ||
         absl::IsDeadlineExceeded(status) || absl::IsPermissionDenied(status);
}

// Calls work(i) for all i < count at the same time.
template <typename Work>
void SideBySide(size_t count, const Work& work) {
  std::vector<std::thread> others;
  for (size_t i = 1; i < count; ++i) others.emplace_back([&work, i] { work(i); });
  if (count > 0) work(size_t{0});
  for (std::thread& thread : others) thread.join();
}

// A version, and what the next one may be a delta over.
struct HeldVersion {
  WeightVersion version;
  std::vector<TensorSource> tensors;
  DigestMap digests;
  std::shared_ptr<BucketSource> on_device;     // null: none, or it was used
  DigestMap word_sums;                         // where there was one
  std::shared_ptr<const AdapterPush> adapter;  // null: the tensors are the model's
};

}  // namespace

struct WeightPublisher::Impl {
  Impl(const ServerPool* servers, const std::string& run, const WeightPublisherOptions& wanted)
      : pool(servers), options(wanted), run_id(run), group(run, wanted.group) {}

  void RenewLeases();
  absl::Duration lease() const { return absl::Seconds(options.lease_seconds); }
  WeightRemote& remote(int server) {
    MutexLock lock(&mu);
    return RemoteLocked(server);
  }
  WeightRemote& RemoteLocked(int server) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu);

  bool Runs(const RemoteWeights& live, WeightVersion version, const DigestMap& digests) const {
    return live.version == version && live.digests == digests;
  }
  // Compares with the held version. Word sums are compared where both sides have them.
  bool RunsHeld(const RemoteWeights& live) const {
    return Runs(live, held.version, held.digests) &&
           (live.word_sums.empty() || held.word_sums.empty() || live.word_sums == held.word_sums) &&
           MadeTheSame(live);
  }
  bool TakesDelta(const RemoteWeights& live) const {
    return !deltas.empty() && live.takes_delta && Runs(live, base_version, base_digests);
  }
  WeightPayload Payload(bool as_delta) const;
  // Could a group of these options send bytes from there?
  bool MaySendFrom(Device memory) const {
    return options.transport == PushTransport::kCollective &&
           comm::DeviceOf(options.group.backend) == memory;
  }

  bool FindSkipped(const RemoteWeights& live, ServerPush* push);
  absl::Status NoteMerged(const RemoteWeights& live, ServerPush* push);
  // Did the server make the same weights of the held adapter as the first server that made any?
  bool MadeTheSame(const RemoteWeights& live) const {
    MutexLock lock(&mu);
    return merged.empty() || live.merged == merged;
  }
  absl::Status Commit(WeightRemote& remote, ServerPush* push);
  absl::Status Attempt(WeightRemote& remote, bool delta_allowed, ServerPush* push);
  ServerPush PushTo(int server);
  std::vector<ServerPush> PushTogether(const std::vector<int>& servers);
  void SendTogether(const std::vector<ServerPush*>& pushes, bool as_delta);
  int64_t EpochToClaim();
  absl::Status JudgeRefusal(int server, const absl::Status& refusal);

  const ServerPool* const pool;
  const WeightPublisherOptions options;
  const std::string run_id;
  int64_t epoch = 0;  // 0: nothing claimed yet
  HeldVersion held;
  WeightVersion base_version;
  DigestMap base_digests;
  std::vector<TensorDelta> deltas;  // from the base to what is held; empty: none smaller
  PushGroup group;
  std::set<int> cannot_join;           // until they are claimed anew
  std::map<int, double> denied_since;  // seconds; until they are claimed
  std::thread renewer;
  EndSign end;  // of the renewer

  mutable Mutex mu;
  DigestMap merged ABSL_GUARDED_BY(mu);  // what the first server made of the held adapter
  std::map<int, WeightRemote> remotes ABSL_GUARDED_BY(mu);  // of servers that were called
  std::string traceparent ABSL_GUARDED_BY(mu);
  std::set<int> claimed ABSL_GUARDED_BY(mu);
  int64_t renewed_epoch ABSL_GUARDED_BY(mu) = 0;
};

void BindOptions(OptionBinder& binder, WeightPublisherOptions& options) {
  binder.Choice("transport", &options.transport,
                {{"stream", PushTransport::kStream}, {"collective", PushTransport::kCollective}},
                "stream: gRPC to each server; collective: one broadcast to all (c10d; trusted "
                "networks only), the stream for who cannot join");
  binder.Flag("delta", &options.delta,
              "send only what changed to servers that run the version before, where that is less");
  binder.Choice<QuantiseOn>(
      "quantise_on", &options.quantise_on,
      {{"trainer", QuantiseOn::kTrainer}, {"server", QuantiseOn::kServer}},
      "weights of servers that all quantise alike: on the trainer, which sends half or a quarter "
      "of "
      "the bytes, or on each server as they arrive; servers that differ do so themselves");
  binder.Number("timeout_seconds", &options.timeout_seconds, {.min = 0, .exclusive_min = true}, "s",
                "deadline of sending, and of committing, one version at one server");
  binder.Number("lease_seconds", &options.lease_seconds, {.min = 1, .max = 86400}, "s",
                "a server is free again this long after the trainer died");
  binder.Integer("chunk_bytes", &options.chunk_bytes, {.min = 1024, .max = 3 << 20}, "bytes",
                 "one message of the stream");
  binder.Integer("max_attempts", &options.max_attempts, {.min = 1}, "pushes",
                 "of one version to one server; then it is out of rotation");
  binder.Integer("hold_back_versions", &options.hold_back_versions, {.min = 0, .max = 64},
                 "versions",
                 "servers are given weights exactly this much older than the trainer's, to study "
                 "staleness; needs max_staleness of at least as many");
  binder.Integer("debug_skip_push_at_step", &options.debug_skip_push_at_step, {.min = 0}, "step",
                 "fault for tests: claim this version was delivered without sending it; 0: off");
  binder.Section("group", "of transport collective (docs/weight_push.md)", options.group);
}

absl::Status CheckBuild(const WeightPublisherOptions& options) {
  const bool wants_nccl = options.transport == PushTransport::kCollective &&
                          options.group.backend == comm::Backend::kNccl;
  if (!wants_nccl || comm::HasNccl()) return absl::OkStatus();
  return FailedPrecondition(
      "trainer.push.group.backend is nccl, and this build has no CUDA: build the cuda preset "
      "(docs/dev/cuda.md)");
}

WeightPublisher::WeightPublisher(const ServerPool* pool, const std::string& run_id,
                                 const WeightPublisherOptions& options)
    : impl_(std::make_unique<Impl>(pool, run_id, options)) {
  impl_->renewer = std::thread([this] { impl_->RenewLeases(); });
}

WeightPublisher::~WeightPublisher() { Release(); }

WeightRemote& WeightPublisher::Impl::RemoteLocked(int server) {
  const auto [it, is_first] = remotes.try_emplace(server, &pool->at(server).weights, run_id,
                                                  absl::Seconds(options.timeout_seconds));
  if (is_first) it->second.SetTraceparent(traceparent);
  return it->second;
}

void WeightPublisher::Forget(int server) {
  impl_->group.Forget(&impl_->remote(server));
  MutexLock lock(&impl_->mu);
  impl_->claimed.erase(server);
}

void WeightPublisher::Impl::RenewLeases() {
  const auto period = absl::ToChronoMilliseconds(lease() / 3);
  while (!end.WaitFor(period)) {
    std::vector<WeightRemote*> servers;
    int64_t claimed_epoch = 0;
    {
      MutexLock lock(&mu);
      for (const int server : claimed) servers.push_back(&RemoteLocked(server));
      claimed_epoch = renewed_epoch;
    }
    for (WeightRemote* const server : servers) {
      const absl::Status status = server->InitTransfer(claimed_epoch, lease(), false);
      if (!status.ok()) {
        log::Warning("a lease could not be renewed", {{"reason", status.ToString()}});
      }
    }
  }
}

absl::StatusOr<DType> WeightPublisher::ServerDType(int server) {
  TANDEM_ASSIGN_OR_RETURN(const RemoteWeights live, impl_->remote(server).Info());
  return live.dtype;
}

absl::StatusOr<std::string> WeightPublisher::StoredFormats(int server) {
  TANDEM_ASSIGN_OR_RETURN(const RemoteWeights live, impl_->remote(server).Info());
  return live.stored_formats;
}

int64_t WeightPublisher::Impl::EpochToClaim() {
  if (epoch == 0) {
    int64_t highest = 0;
    for (int server = 0; server < pool->size(); ++server) {
      highest = std::max(highest, remote(server).HighestEpoch());
    }
    // Above what a trainer of this run that died before its first push may have claimed.
    epoch = highest + 2;
    MutexLock lock(&mu);
    renewed_epoch = epoch;
  }
  return epoch;
}

absl::Status WeightPublisher::Claim(int server) {
  WeightRemote& remote = impl_->remote(server);
  TANDEM_RETURN_IF_ERROR(impl_->JudgeRefusal(
      server, remote.InitTransfer(impl_->EpochToClaim(), impl_->lease(), false)));
  impl_->group.Forget(&remote);
  impl_->cannot_join.erase(server);
  MutexLock lock(&impl_->mu);
  impl_->claimed.insert(server);
  return absl::OkStatus();
}

absl::Status WeightPublisher::Impl::JudgeRefusal(int server, const absl::Status& refusal) {
  if (!absl::IsPermissionDenied(refusal)) {
    denied_since.erase(server);
    return refusal;
  }
  const double now = MonotonicSeconds();
  const double since = denied_since.try_emplace(server, now).first->second;
  return JudgeRefusedClaim(refusal, now - since, options.lease_seconds);
}

absl::Status JudgeRefusedClaim(const absl::Status& refusal, double denied_seconds,
                               double lease_seconds) {
  if (!absl::IsPermissionDenied(refusal) || denied_seconds <= lease_seconds + kLeaseSlackSeconds) {
    return refusal;
  }
  return FailedPrecondition(
      refusal.message(), "; refused for ", static_cast<int64_t>(denied_seconds),
      " s, longer than the lease of a trainer that died: another process calls itself this run");
}

absl::Status WeightPublisher::SetWeights(WeightVersion version, std::vector<TensorSource> tensors,
                                         std::shared_ptr<BucketSource> on_device,
                                         std::shared_ptr<const AdapterPush> adapter) {
  if (on_device && !impl_->MaySendFrom(on_device->memory())) on_device.reset();
  const std::vector<TensorSource>& base = impl_->held.tensors;
  const size_t count = tensors.size();
  const bool wants_delta = impl_->options.delta && base.size() == count && adapter == nullptr;
  std::vector<std::string> digests(count), word_sums(count);
  std::vector<TensorDelta> deltas(wants_delta ? count : 0);
  std::vector<absl::Status> read(count);
  const auto digest = [&](size_t i) -> absl::Status {
    TANDEM_ASSIGN_OR_RETURN(const HostTensor tensor, tensors[i].read());
    digests[i] = Digest128(tensor.bytes);
    if (on_device) word_sums[i] = WordSumsDigest(tensor.bytes);
    if (!wants_delta) return absl::OkStatus();
    TANDEM_ASSIGN_OR_RETURN(const HostTensor before, base[i].read());
    deltas[i] = MakeDelta(before, tensor);
    return absl::OkStatus();
  };
  ThreadTeam team(std::max(1, static_cast<int>(std::thread::hardware_concurrency())));
  team.Run([&](ThreadTeam::Member& member) {
    member.ForEach(static_cast<int64_t>(count), [&](int64_t place) {
      read[static_cast<size_t>(place)] = digest(static_cast<size_t>(place));
    });
  });
  for (const absl::Status& status : read) TANDEM_RETURN_IF_ERROR(status);
  const bool all_dense = std::ranges::all_of(
      deltas, [](const TensorDelta& delta) { return delta.encoding == TensorEncoding::kDense; });
  if (all_dense) deltas.clear();
  impl_->base_version = impl_->held.version;
  impl_->base_digests = impl_->held.digests;
  impl_->deltas = std::move(deltas);
  impl_->held = {version, std::move(tensors), {}, std::move(on_device), {}, std::move(adapter)};
  {
    MutexLock lock(&impl_->mu);
    impl_->merged.clear();
  }
  for (size_t i = 0; i < count; ++i) {
    const std::string& name = impl_->held.tensors[i].spec.name;
    impl_->held.digests[name] = std::move(digests[i]);
    if (impl_->held.on_device) impl_->held.word_sums[name] = std::move(word_sums[i]);
  }
  return absl::OkStatus();
}

WeightPayload WeightPublisher::Impl::Payload(bool as_delta) const {
  WeightPayload payload = {
      .version = held.version, .tensors = held.tensors, .adapter = held.adapter.get()};
  if (as_delta) {
    payload.base = base_version;
    payload.deltas = deltas;
  }
  return payload;
}

// A commit whose reply was lost, or a server that loaded the same file, has them already.
bool WeightPublisher::Impl::FindSkipped(const RemoteWeights& live, ServerPush* push) {
  if (!RunsHeld(live)) return false;
  if (held.adapter != nullptr && !NoteMerged(live, push).ok()) return false;
  push->skipped = true;
  push->digest = CombinedDigest(live.digests);
  push->live_epoch = live.epoch;
  return true;
}

// Takes the digests of the weights that the first server made of an adapter, which those of others
// must equal.
absl::Status WeightPublisher::Impl::NoteMerged(const RemoteWeights& live, ServerPush* push) {
  TANDEM_RETURN_IF_ERROR(CheckApplied(*held.adapter, live.applied));
  push->effect = NumbersOf(*held.adapter, live.applied);
  MutexLock lock(&mu);
  if (merged.empty()) merged = live.merged;
  if (live.merged == merged) return absl::OkStatus();
  return DataLoss("it made other weights of the adapter than another server, in ",
                  Differing(merged, live.merged));
}

absl::Status WeightPublisher::Impl::Commit(WeightRemote& remote, ServerPush* push) {
  FailPoint("publisher: sent");
  TANDEM_ASSIGN_OR_RETURN(const CommitReply reply,
                          remote.Commit(epoch, held.version, held.digests,
                                        push->on_device ? held.word_sums : DigestMap()));
  FailPoint("publisher: committed");
  const DigestMap& live = reply.live.digests;
  if (!RunsHeld(reply.live)) {
    return DataLoss(remote.address(), " committed version ", held.version.value,
                    " and reports version ", reply.live.version.value, " live; digests differ in ",
                    Differing(held.digests, live));
  }
  if (push->on_device && reply.live.word_sums != held.word_sums) {
    return DataLoss(remote.address(), " committed version ", held.version.value,
                    " that came on the device; its word_sums differ in ",
                    Differing(held.word_sums, reply.live.word_sums));
  }
  if (held.adapter != nullptr) {
    const absl::Status applied = NoteMerged(reply.live, push);
    if (!applied.ok()) return DataLoss(remote.address(), ": ", applied.message());
  }
  push->verify_ms = reply.verify_ms;
  push->pack_ms = reply.pack_ms;
  push->pause_ms = reply.pause_ms;
  push->digest = CombinedDigest(live);
  push->live_epoch = epoch;
  return absl::OkStatus();
}

absl::Status WeightPublisher::Impl::Attempt(WeightRemote& remote, bool delta_allowed,
                                            ServerPush* push) {
  TANDEM_ASSIGN_OR_RETURN(const RemoteWeights live, remote.Info());
  if (FindSkipped(live, push)) return absl::OkStatus();
  push->bytes = 0;
  push->is_delta = delta_allowed && TakesDelta(live);
  const WeightPayload payload = Payload(push->is_delta);
  TANDEM_RETURN_IF_ERROR(remote.Begin(epoch, payload));
  FailPoint("publisher: begun");
  const double start = MonotonicSeconds();
  absl::Status status = remote.SendChunks(payload, options.chunk_bytes, &push->bytes);
  push->send_seconds = MonotonicSeconds() - start;
  if (status.ok()) status = Commit(remote, push);
  if (!status.ok()) remote.Abort(held.version);
  return status;
}

ServerPush WeightPublisher::Impl::PushTo(int server) {
  ServerPush push = {.server = server};
  const double start = MonotonicSeconds();
  for (int64_t attempt = 0; attempt < options.max_attempts; ++attempt) {
    // The cause of a failed delta is not known, so the next attempt sends whole tensors.
    push.status = Attempt(remote(server), /*delta_allowed=*/attempt == 0, &push);
    if (push.status.ok() || IsFinal(push.status)) break;
    log::Warning("a weight push failed",
                 {{"server", remote(server).address()}, {"reason", push.status.ToString()}});
  }
  push.seconds = MonotonicSeconds() - start;
  return push;
}

// Begins, sends and commits at servers that need the weights, through the group as far as they can
// join it. Leaves the first error of each in its status.
void WeightPublisher::Impl::SendTogether(const std::vector<ServerPush*>& pushes, bool as_delta) {
  std::vector<WeightRemote*> members;
  for (ServerPush* const push : pushes) members.push_back(&remote(push->server));
  const std::vector<absl::Status> formed = group.Form(epoch, members);
  std::vector<ServerPush*> in;
  members.clear();
  for (size_t i = 0; i < pushes.size(); ++i) {
    pushes[i]->status = formed[i];
    if (formed[i].ok()) {
      in.push_back(pushes[i]);
      members.push_back(&remote(pushes[i]->server));
      continue;
    }
    cannot_join.insert(pushes[i]->server);
    log::Warning(
        "a server cannot join the push group; it gets the stream",
        {{"server", remote(pushes[i]->server).address()}, {"reason", formed[i].ToString()}});
  }
  if (in.empty()) return;
  // Once: after this push the masters move on.
  const std::shared_ptr<BucketSource> source = std::exchange(held.on_device, nullptr);
  const bool on_device = source != nullptr && group.TakesOnDevice(source->memory());
  as_delta = as_delta && !on_device;
  WeightPayload payload = Payload(as_delta);
  if (on_device) payload.on_device = source.get();
  SideBySide(in.size(), [&](size_t i) { in[i]->status = members[i]->Begin(epoch, payload); });
  // Members that did not begin would keep the others waiting.
  FailPoint("publisher: begun");
  const bool begun = std::ranges::all_of(in, [](ServerPush* push) { return push->status.ok(); });
  std::vector<absl::Status> sent(in.size(), Aborted("another server could not begin"));
  const double start = MonotonicSeconds();
  if (begun) sent = group.Send(payload);
  const double seconds = MonotonicSeconds() - start;
  SideBySide(in.size(), [&](size_t i) {
    ServerPush& push = *in[i];
    push.over_group = true;
    push.is_delta = as_delta;
    push.on_device = on_device;
    push.send_seconds = seconds;
    for (const int64_t size : payload.wire_sizes()) push.bytes += size;
    push.status.Update(sent[i]);
    if (push.status.ok()) push.status = Commit(*members[i], &push);
    if (!push.status.ok()) members[i]->Abort(held.version);
  });
}

std::vector<ServerPush> WeightPublisher::Impl::PushTogether(const std::vector<int>& servers) {
  const double start = MonotonicSeconds();
  std::vector<ServerPush> pushes(servers.size());
  // Chars and no bits: threads write neighbours, which would share a byte.
  std::vector<char> needs(servers.size(), 0), takes_delta(servers.size(), 0);
  SideBySide(servers.size(), [&](size_t i) {
    pushes[i].server = servers[i];
    const absl::StatusOr<RemoteWeights> live = remote(servers[i]).Info();
    pushes[i].status = live.status();
    needs[i] = live.ok() && !FindSkipped(*live, &pushes[i]);
    takes_delta[i] = live.ok() && TakesDelta(*live);
  });
  std::vector<ServerPush*> together;
  bool as_delta = true;
  for (size_t i = 0; i < servers.size(); ++i) {
    if (!needs[i] || cannot_join.contains(servers[i])) continue;
    together.push_back(&pushes[i]);
    as_delta = as_delta && takes_delta[i];
  }
  if (!together.empty()) SendTogether(together, as_delta);
  SideBySide(servers.size(), [&](size_t i) {
    const bool delivered = pushes[i].status.ok() && (pushes[i].over_group || !needs[i]);
    if (!delivered) {
      if (pushes[i].over_group) {
        log::Warning(
            "a push through the group failed; the stream is next",
            {{"server", remote(servers[i]).address()}, {"reason", pushes[i].status.ToString()}});
      }
      pushes[i] = PushTo(servers[i]);
    }
    pushes[i].seconds = MonotonicSeconds() - start;
  });
  return pushes;
}

ServerPush WeightPublisher::PushTo(int server) { return impl_->PushTo(server); }

std::vector<ServerPush> WeightPublisher::Publish(const std::vector<int>& servers) {
  const int64_t skip = impl_->options.debug_skip_push_at_step;
  std::vector<ServerPush> pushes(servers.size());
  if (skip > 0 && version().value == skip) {
    for (size_t i = 0; i < servers.size(); ++i) {
      pushes[i].server = servers[i];
      pushes[i].live_epoch = impl_->epoch;
      pushes[i].digest = CombinedDigest(digests());
    }
    return pushes;
  }
  if (impl_->options.transport == PushTransport::kCollective) return impl_->PushTogether(servers);
  SideBySide(servers.size(), [&](size_t i) { pushes[i] = impl_->PushTo(servers[i]); });
  return pushes;
}

absl::Status WeightPublisher::Verify(int server) {
  WeightRemote& remote = impl_->remote(server);
  const absl::StatusOr<RemoteWeights> live = remote.Info();
  if (!live.ok()) return Unavailable(live.status().message());
  if (impl_->RunsHeld(*live)) return absl::OkStatus();
  const absl::StatusOr<std::string> owner = remote.Owner();
  if (!owner.ok() || *owner != impl_->run_id) {
    return Unavailable(remote.address(), " no longer belongs to this run: it was started anew");
  }
  return DataLoss(
      remote.address(), " runs weight version ", live->version.value, " (digest ",
      CombinedDigest(live->digests), ") where version ", version().value, " (digest ",
      CombinedDigest(digests()), ") was published; it differs in ",
      Differing(digests(), live->digests),
      ": the push was not delivered, and nothing this server samples may be trained on");
}

void WeightPublisher::Release() {
  if (!impl_->renewer.joinable()) return;
  impl_->end.Give();
  impl_->renewer.join();
  std::set<int> servers;
  {
    MutexLock lock(&impl_->mu);
    servers = impl_->claimed;
  }
  for (const int server : servers) {
    const absl::Status status =
        impl_->remote(server).InitTransfer(impl_->epoch, impl_->lease(), true);
    if (!status.ok()) {
      log::Warning("a server could not be given back", {{"reason", status.ToString()}});
    }
  }
}

WeightVersion WeightPublisher::version() const { return impl_->held.version; }
const DigestMap& WeightPublisher::digests() const { return impl_->held.digests; }
DigestMap WeightPublisher::served_digests() const {
  if (impl_->held.adapter == nullptr) return impl_->held.digests;
  MutexLock lock(&impl_->mu);
  return impl_->merged;
}
int64_t WeightPublisher::num_bytes() const {
  int64_t sum = 0;
  for (const TensorSource& tensor : impl_->held.tensors) sum += tensor.spec.num_bytes();
  return sum;
}

int64_t WeightPublisher::epoch() const { return impl_->epoch; }

void WeightPublisher::SetTraceparent(const std::string& header) {
  MutexLock lock(&impl_->mu);
  impl_->traceparent = header;
  for (auto& [server, remote] : impl_->remotes) remote.SetTraceparent(header);
}

}  // namespace tandem::trainer
