#include "common/comm/collective.h"
#include "common/base/printable.h"
#include "common/base/status_macros.h"

#include <mutex>
#include <optional>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/clock.h"
#include "common/comm/backends.h"
#include "common/rendezvous/roll_call.h"
#include "common/rendezvous/store_connection.h"

namespace tandem::comm {
namespace {

using WorkHandle = c10::intrusive_ptr<c10d::Work>;

// Held while an operation is enqueued. The first operation of each group adds the group to a table
// of the process, and every operation reads that table: c10d's flight recorder
// (FlightRecorderDetail.hpp, all_pg_status_) accesses it without a lock, so that concurrent
// enqueues crashed.
std::mutex flight_recorder;

c10d::ReduceOp OpOf(Reduction reduction) {
  return reduction == Reduction::kSum ? c10d::ReduceOp::SUM : c10d::ReduceOp::MAX;
}

}  // namespace

struct Collective::Group {
  Group(Store under, const GroupOptions& wanted)
      : store(std::move(under)),
        options(wanted),
        roll_call(store, options.members, options.rank, options.lag) {}

  // Ends NCCL's threads and communicator without messages. Gloo's end with the object.
  ~Group() {
    try {
      if (backend && backend->getBackendName() == "nccl") backend->abort();
    } catch (const std::exception&) {
      // The group is ending; a failure to abort changes nothing.
    }
  }

  const Store store;
  const GroupOptions options;
  RollCall roll_call;
  c10::intrusive_ptr<c10d::Backend> backend;
  int64_t sequence = 0;

  std::mutex mutex;
  std::optional<absl::Status> broken;  // the first failure, or Abort

  absl::Status state() {
    const std::lock_guard lock(mutex);
    return broken.value_or(absl::OkStatus());
  }

  absl::Status Break(absl::Status why) {
    const std::lock_guard lock(mutex);
    if (!broken) broken = std::move(why);
    return *broken;
  }

  std::chrono::milliseconds deadline() const {
    return std::chrono::milliseconds(absl::ToInt64Milliseconds(options.deadline));
  }

  // For messages: "all_reduce 12 of group train (0.3 MB, 4 ranks)".
  std::string Describe(const char* operation, int64_t number, int64_t bytes) const {
    return absl::StrFormat("%s %d of group %s (%.1f MB, %d ranks)", operation, number, options.name,
                           static_cast<double>(bytes) / 1e6, options.members.size());
  }

  absl::Status Fail(const std::string& what, int64_t number, absl::Time start,
                    const std::string& error) {
    // After Abort there is no culprit to look for.
    if (absl::Status why = state(); !why.ok()) return why;
    const absl::Duration took = SteadyNow() - start;
    return Break(Unavailable(
        absl::StrFormat("%s failed after %.1f s (deadline %.1f s): %s [c10d: %s]", what,
                        absl::ToDoubleSeconds(took), absl::ToDoubleSeconds(options.deadline),
                        roll_call.Ask(number), FirstLine(error))));
  }

  // Enqueues an operation, and returns a function that waits for it. Operations are numbered, and
  // the roll call publishes the number of the last one this member entered. Since all members call
  // the same operations in the same order, a member with a smaller number is behind. Several
  // operations may be in progress, so only waiting for the last one marks this member as outside.
  template <typename Begin>
  std::function<absl::Status()> Start(const char* operation, int64_t bytes, const Begin& begin) {
    if (absl::Status why = state(); !why.ok()) {
      return [why = std::move(why)] { return why; };
    }
    const int64_t number = ++sequence;
    const absl::Time start = SteadyNow();
    const std::string what = Describe(operation, number, bytes);
    roll_call.Enter(number);
    WorkHandle work;
    std::string error;
    try {
      const std::lock_guard lock(flight_recorder);
      work = begin();
    } catch (const std::exception& thrown) {
      error = thrown.what();
    }
    return [this, number, start, what, work, error]() -> absl::Status {
      std::string problem = error;
      if (problem.empty()) {
        try {
          work->wait(deadline());
        } catch (const std::exception& thrown) {
          problem = thrown.what();
        }
      }
      if (!problem.empty()) return Fail(what, number, start, problem);
      if (number == sequence) roll_call.Leave();
      return state();
    };
  }
};

absl::StatusOr<std::unique_ptr<Collective>> Collective::Make(Backend backend, const Store& store,
                                                             const GroupOptions& options) {
  if (backend == Backend::kNccl && !HasNccl()) {
    return Unimplemented("this build has no NCCL: build the cuda preset");
  }
  const Store under = store.Under(absl::StrCat("group/", options.name));
  auto group = std::make_shared<Group>(under, options);
  const auto size = static_cast<int>(options.members.size());
  try {
    TANDEM_ASSIGN_OR_RETURN(const Reach reach, store.GetReach());
    const auto& place = under.connection().prefixed;
    group->backend = backend == Backend::kNccl
                         ? MakeNccl(place, options.rank, size, options.name, group->deadline())
                         : MakeGloo(place, options.rank, size, reach, group->deadline());
  } catch (const NoDevice& error) {
    return FailedPrecondition("group ", options.name, ": ", error.what());
  } catch (const std::exception& error) {
    return Unavailable("group ", options.name, " could not be made: ", group->roll_call.Ask(0),
                       " [c10d: ", FirstLine(error.what()), "]");
  }
  return std::unique_ptr<Collective>(new Collective(std::move(group)));
}

Collective::~Collective() = default;

int Collective::rank() const { return group_->options.rank; }
int Collective::size() const { return static_cast<int>(group_->options.members.size()); }
const std::string& Collective::name() const { return group_->options.name; }
at::Device Collective::device() const {
  return group_->backend->getBoundDeviceId().value_or(at::Device(at::kCPU));
}

Pending Collective::StartAllReduce(at::Tensor tensor, Reduction reduction) {
  const auto bytes = static_cast<int64_t>(tensor.nbytes());
  return Pending(group_->Start("all_reduce", bytes, [&] {
    std::vector<at::Tensor> tensors = {std::move(tensor)};
    c10d::AllreduceOptions options;
    options.reduceOp = OpOf(reduction);
    options.timeout = group_->deadline();
    return group_->backend->allreduce(tensors, options);
  }));
}

absl::Status Collective::AllReduce(at::Tensor tensor, Reduction reduction) {
  return StartAllReduce(std::move(tensor), reduction).Wait();
}

Pending Collective::StartBroadcast(at::Tensor tensor, int root) {
  const auto bytes = static_cast<int64_t>(tensor.nbytes());
  return Pending(group_->Start("broadcast", bytes, [&] {
    std::vector<at::Tensor> tensors = {std::move(tensor)};
    c10d::BroadcastOptions options;
    options.rootRank = root;
    options.timeout = group_->deadline();
    return group_->backend->broadcast(tensors, options);
  }));
}

absl::Status Collective::Broadcast(at::Tensor tensor, int root) {
  return StartBroadcast(std::move(tensor), root).Wait();
}

Pending Collective::StartAllGather(at::Tensor part, at::Tensor all) {
  return Pending(group_->Start("all_gather", static_cast<int64_t>(all.nbytes()), [&] {
    c10d::AllgatherOptions options;
    options.timeout = group_->deadline();
    return group_->backend->_allgather_base(all, part, options);
  }));
}

Pending Collective::StartReduceScatter(at::Tensor all, at::Tensor part) {
  return Pending(group_->Start("reduce_scatter", static_cast<int64_t>(all.nbytes()), [&] {
    c10d::ReduceScatterOptions options;
    options.timeout = group_->deadline();
    return group_->backend->_reduce_scatter_base(part, all, options);
  }));
}

void Collective::Abort(const std::string& reason) {
  group_->Break(Aborted("group ", group_->options.name, " was aborted: ", reason)).IgnoreError();
  try {
    group_->backend->abort();
  } catch (const std::exception&) {
    // The group is already broken; a failure to abort changes nothing.
  }
}

}  // namespace tandem::comm
