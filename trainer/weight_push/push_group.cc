#include "trainer/weight_push/push_group.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <thread>
#include <utility>

#include "common/base/log.h"
#include "common/base/mutex.h"
#include "common/base/status_macros.h"
#include "common/comm/group.h"
#include "common/comm/push_seats.h"
#include "common/rendezvous/loopback.h"
#include "common/rendezvous/rendezvous.h"
#include "common/weights/wire_buckets.h"

namespace tandem::trainer {
namespace {

// One call to each of several servers, at the same time.
class Calls {
 public:
  template <typename Call>
  Calls(std::span<WeightRemote* const> remotes, const Call& call) : answers_(remotes.size()) {
    for (size_t i = 0; i < remotes.size(); ++i) {
      threads_.emplace_back([this, i, remote = remotes[i], call] {
        absl::Status answer = call(*remote, i);
        MutexLock lock(&mu_);
        failed_ = failed_ || !answer.ok();
        answers_[i] = std::move(answer);
      });
    }
  }
  ~Calls() { Join(); }

  // Has a call failed by now?
  bool failed() {
    MutexLock lock(&mu_);
    return failed_;
  }

  std::vector<absl::Status> Join() {
    for (std::thread& thread : threads_) thread.join();
    threads_.clear();
    MutexLock lock(&mu_);
    return answers_;
  }

 private:
  Mutex mu_;
  std::vector<absl::Status> answers_ ABSL_GUARDED_BY(mu_);
  bool failed_ ABSL_GUARDED_BY(mu_) = false;
  std::vector<std::thread> threads_;
};

// Copies buckets together, one after the other; a tensor that goes on in the next one is read once.
class BucketFiller : public BucketSource {
 public:
  explicit BucketFiller(const WeightPayload& payload) : payload_(payload) {}

  Device memory() const override { return Device::kCpu; }

  absl::StatusOr<std::span<std::byte>> Fill(size_t place, const Bucket& bucket) override {
    std::vector<std::byte>& bytes = buffers_[place];
    bytes.resize(static_cast<size_t>(bucket.num_bytes));
    std::byte* at = bytes.data();
    for (const BucketSlice& slice : bucket.slices) {
      if (slice.tensor != tensor_) {
        TANDEM_ASSIGN_OR_RETURN(from_, payload_.wire(static_cast<size_t>(slice.tensor)));
        tensor_ = slice.tensor;
      }
      std::memcpy(at, from_.bytes.data() + slice.offset, static_cast<size_t>(slice.length));
      at += slice.length;
    }
    return std::span(bytes);
  }

 private:
  const WeightPayload& payload_;
  int32_t tensor_ = -1;
  WireBytes from_;
  std::array<std::vector<std::byte>, 2> buffers_;
};

}  // namespace

void BindOptions(OptionBinder& binder, PushGroupOptions& options) {
  binder.Text("host", &options.host,
              "of the trainer, where servers meet it; empty: where its calls come from");
  binder.Integer("port", &options.port, {.min = 0, .max = 65535}, "",
                 "of the store they meet at; 0: any free one");
  binder.Choice(
      "backend", &options.backend, {{"gloo", comm::Backend::kGloo}, {"nccl", comm::Backend::kNccl}},
      "nccl: between GPUs, one for the trainer and one for each server; needs builds of the "
      "cuda preset");
  binder.Number("deadline_seconds", &options.deadline_seconds, {.min = 1}, "s",
                "of one bucket, and of making a group; then the servers get the stream");
  binder.Integer("bucket_bytes", &options.bucket_bytes, {.min = 1 << 16, .max = 1 << 30}, "bytes",
                 "of one broadcast");
}

PushGroup::PushGroup(const std::string& run_id, const PushGroupOptions& options)
    : run_id_(run_id), options_(options) {}

PushGroup::~PushGroup() = default;

// Open to the network from the first server on that is not of this machine.
absl::StatusOr<comm::Store> PushGroup::OpenStore(std::span<WeightRemote* const> remotes) {
  const bool near = std::ranges::all_of(
      remotes, [](const WeightRemote* remote) { return IsLoopback(remote->address()); });
  const bool here = options_.host.empty() || IsLoopback(options_.host + ":0");
  if (reach_ == comm::Reach::kMachine && !(near && here)) {
    store_.reset();
    reach_ = comm::Reach::kNetwork;
  }
  if (store_ == nullptr) {
    TANDEM_ASSIGN_OR_RETURN(comm::Store store,
                            comm::Store::Host(static_cast<int>(options_.port), reach_));
    store_ = std::make_unique<comm::Store>(std::move(store));
  }
  return *store_;
}

std::vector<absl::Status> PushGroup::Form(int64_t epoch, std::span<WeightRemote* const> remotes) {
  const bool same = std::ranges::equal(members_, remotes) && epoch == epoch_;
  if (group_ != nullptr && same) return std::vector<absl::Status>(remotes.size());
  epoch_ = epoch;
  std::vector<absl::Status> first = TryForm(remotes);
  std::vector<WeightRemote*> able;
  std::vector<size_t> places;
  for (size_t i = 0; i < remotes.size(); ++i) {
    // Called off because of others, and not in error itself.
    if (!absl::IsAborted(first[i])) continue;
    able.push_back(remotes[i]);
    places.push_back(i);
  }
  if (able.empty()) return first;
  const std::vector<absl::Status> second = TryForm(able);
  for (size_t i = 0; i < able.size(); ++i) first[places[i]] = second[i];
  return first;
}

// All of them, or none: then those who could have joined are ABORTED.
std::vector<absl::Status> PushGroup::TryForm(std::span<WeightRemote* const> remotes) {
  group_.reset();
  members_.clear();
  all_take_on_device_ = false;
  const absl::StatusOr<comm::Store> store = OpenStore(remotes);
  if (!store.ok()) return std::vector<absl::Status>(remotes.size(), store.status());
  comm::PushSeatOffer offer = {.run_id = run_id_,
                               .epoch = epoch_,
                               .membership = ++membership_,
                               .backend = options_.backend,
                               .store_host = options_.host,
                               .store_port = store->port(),
                               .members = {comm::SelfName()},
                               .deadline = absl::Seconds(options_.deadline_seconds)};
  for (const WeightRemote* const remote : remotes) offer.members.push_back(remote->address());
  const std::string name = comm::PushGroupName(run_id_, epoch_, offer.membership);
  // Chars and no bits: threads write neighbours, which would share a byte.
  std::vector<char> take_on_device(remotes.size(), 0);
  Calls calls(remotes, [&, offer](WeightRemote& remote, size_t i) {
    comm::PushSeatOffer seat = offer;
    seat.rank = static_cast<int>(i) + 1;
    const absl::StatusOr<bool> joined = remote.JoinPushGroup(seat);
    take_on_device[i] = joined.ok() && *joined;
    return joined.status();
  });
  const comm::PushSeats seats(*store, name);
  absl::Status made = seats.WaitForAll(static_cast<int>(remotes.size()), offer.deadline,
                                       [&] { return calls.failed(); });
  if (made.ok()) {
    auto group =
        comm::JoinGroup(options_.backend, *store, {name, 0, offer.members, offer.deadline});
    made = group.status();
    if (group.ok()) group_ = *std::move(group);
  }
  std::vector<absl::Status> answers = calls.Join();
  const bool all = made.ok() && std::ranges::all_of(answers, &absl::Status::ok);
  if (all) {
    members_.assign(remotes.begin(), remotes.end());
    all_take_on_device_ = std::ranges::all_of(take_on_device, [](char takes) { return takes; });
    return answers;
  }
  group_.reset();
  for (absl::Status& answer : answers) {
    if (answer.ok()) answer = made.ok() ? Aborted("another server did not join") : made;
  }
  return answers;
}

bool PushGroup::TakesOnDevice(Device memory) const {
  return group_ != nullptr && all_take_on_device_ && memory == comm::DeviceOf(options_.backend);
}

// No bucket ends within an element.
int64_t PushGroup::bucket_bytes() const { return options_.bucket_bytes / 4 * 4; }

absl::Status PushGroup::Broadcast(const WeightPayload& payload) {
  const std::vector<Bucket> buckets = PlanBuckets(payload.wire_sizes(), bucket_bytes());
  // While one bucket is sent the next one is made.
  BucketFiller filler(payload);
  BucketSource& source = payload.on_device != nullptr ? *payload.on_device : filler;
  absl::StatusOr<std::span<std::byte>> next;
  if (!buckets.empty()) next = source.Fill(0, buckets[0]);
  for (size_t i = 0; i < buckets.size(); ++i) {
    TANDEM_RETURN_IF_ERROR(next.status());
    comm::Pending sent = comm::StartBroadcastBytes(*group_, *next, /*root=*/0, source.memory());
    if (i + 1 < buckets.size()) next = source.Fill((i + 1) % 2, buckets[i + 1]);
    TANDEM_RETURN_IF_ERROR(sent.Wait());
  }
  return absl::OkStatus();
}

std::vector<absl::Status> PushGroup::Send(const WeightPayload& payload) {
  Calls calls(members_, [&](WeightRemote& remote, size_t) {
    return remote.ReceiveBuckets(epoch_, membership_, payload.version, bucket_bytes());
  });
  const absl::Status sent = Broadcast(payload);
  // Connections that close tell members who wait for more.
  if (!sent.ok()) group_.reset();
  std::vector<absl::Status> answers = calls.Join();
  for (absl::Status& answer : answers) {
    if (answer.ok()) answer = sent;
  }
  if (!std::ranges::all_of(answers, &absl::Status::ok)) group_.reset();
  return answers;
}

void PushGroup::Forget(const WeightRemote* remote) {
  if (std::ranges::find(members_, remote) != members_.end()) group_.reset();
}

}  // namespace tandem::trainer
