#include "trainer/ranks/process_group.h"

#include <algorithm>
#include <chrono>
#include <optional>
#include <thread>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/base/clock.h"
#include "common/base/exit_codes.h"
#include "common/base/log.h"
#include "common/base/mutex.h"
#include "common/base/status_macros.h"
#include "common/comm/group.h"
#include "common/files/file_system.h"
#include "common/rendezvous/rendezvous.h"
#include "common/weights/digest.h"
#include "trainer/ranks/command_follower.h"
#include "trainer/ranks/remote_learner.h"

namespace tandem::trainer {

namespace {

absl::Status Lost(absl::Status status) {
  return absl::IsUnavailable(status) || absl::IsDeadlineExceeded(status)
             ? WithExitCode(std::move(status), ExitCode::kRankLost)
             : status;
}

absl::Status CheckConfiguration(const comm::Rendezvous& met, const comm::RankEnvironment& self,
                                const std::string& resolved_config) {
  const std::string digest =
      Digest128(std::as_bytes(std::span(resolved_config.data(), resolved_config.size())));
  if (self.rank == 0) return met.store.Set("configuration", digest);
  TANDEM_ASSIGN_OR_RETURN(const std::string expected,
                          met.store.Get("configuration", absl::Seconds(30)));
  if (expected == digest) return absl::OkStatus();
  return WithExitCode(
      InvalidArgument(
          "rank ", self.rank, " (", met.members[static_cast<size_t>(self.rank)],
          ") has another configuration than rank 0 (", met.members[0],
          "): give all ranks the same run file and flags (trainer --dry-run prints what is read)"),
      ExitCode::kUsage);
}

constexpr char kEnded[] = "ended";
std::string HeardBy(int rank) { return absl::StrCat("ended/heard/", rank); }

}  // namespace

struct ProcessGroup::Members {
  ~Members() {
    end.Give();
    if (listener.joinable()) listener.join();
  }

  int rank = 0;
  std::optional<comm::Rendezvous> met;
  std::shared_ptr<comm::Collective> values;
  std::shared_ptr<comm::Collective> parameters;  // null: as `values`
  int size = 1;
  absl::Duration patience;
  bool shard_parameters = false;

  std::thread listener;  // looks for ranks that were asked to stop
  EndSign end;           // of the listener

  RankLink link() const {
    return {rank, size, values.get(), met->store, patience, shard_parameters};
  }
};

ProcessGroup::ProcessGroup(std::unique_ptr<Members> members) : members_(std::move(members)) {}
ProcessGroup::~ProcessGroup() = default;

absl::StatusOr<std::unique_ptr<ProcessGroup>> ProcessGroup::Join(
    const comm::RankEnvironment& self, const RankOptions& options, Device device,
    const std::string& run_name, const std::string& resolved_config) {
  auto members = std::make_unique<Members>();
  members->rank = self.rank;
  members->patience = absl::Seconds(options.silence_seconds);
  members->shard_parameters = options.shard_parameters;
  if (self.world_size == 1)
    return std::unique_ptr<ProcessGroup>(new ProcessGroup(std::move(members)));
  auto met = comm::Meet({.self = self,
                         .job = run_name,
                         .deadline = absl::Seconds(options.meet_seconds),
                         .warn = [](const std::string& text) { log::Warning(text); }});
  if (!met.ok()) return WithExitCode(met.status(), ExitCode::kRankLost);
  members->met = *std::move(met);
  TANDEM_RETURN_IF_ERROR(Lost(CheckConfiguration(*members->met, self, resolved_config)));
  const auto join = [&](comm::Backend backend, const std::string& name) {
    return comm::JoinGroup(
        backend, members->met->store,
        {.name = name,
         .rank = self.rank,
         .members = members->met->members,
         .deadline = absl::Seconds(options.deadline_seconds),
         .lag = {absl::Seconds(options.lag_seconds), [](const std::string& text) {
                   log::Warning("ranks wait", {{"reason", text}});
                 }}});
  };
  auto values = join(comm::Backend::kGloo, "train");
  if (!values.ok()) return Lost(values.status());
  members->values = *std::move(values);
  if (device == Device::kCuda) {
    auto parameters = join(comm::Backend::kNccl, "parameters");
    if (!parameters.ok()) {
      return WithExitCode(Lost(parameters.status()), ExitCode::kBadModelOrData);
    }
    members->parameters = *std::move(parameters);
  }
  members->size = self.world_size;
  return std::unique_ptr<ProcessGroup>(new ProcessGroup(std::move(members)));
}

int ProcessGroup::rank() const { return members_->rank; }
int ProcessGroup::size() const { return members_->size; }
RankCollectives ProcessGroup::collectives() const {
  return {.values = members_->values.get(), .parameters = members_->parameters.get()};
}

std::unique_ptr<Learner> ProcessGroup::Lead(std::unique_ptr<Learner> own) const {
  return alone() ? std::move(own) : LeadRanks(std::move(own), members_->link());
}

void ProcessGroup::RecordFlight(const std::string& directory) const {
  if (alone()) return;
  const std::string path = absl::StrCat(directory, "/flight_rank_", rank(), ".json");
  absl::Status written = MakeDirectories(directory);
  written.Update(WriteFileAtomically(path, comm::FlightRecord()));
  log::Error(written.ok() ? "a rank was lost; the flight record has the last operations"
                          : "the flight record could not be written",
             {{"path", path}, {"reason", written.ToString()}});
}

void ProcessGroup::TakeStopsOfOthers(StopSignal* stop) {
  if (alone()) return;
  members_->listener = std::thread([members = members_.get(), stop] {
    constexpr std::chrono::milliseconds kEach(500);
    while (!members->end.WaitFor(kEach)) {
      const absl::StatusOr<bool> asked = StopAsked(members->link());
      if (!asked.ok()) return;
      if (*asked) {
        log::Info("another rank was asked to stop: all do");
        return stop->Request();
      }
    }
  });
}

void ProcessGroup::End(ExitCode code) const {
  if (alone()) return;
  const comm::Store& store = members_->met->store;
  if (!store.Set(kEnded, absl::StrCat(ToInt(code))).ok()) return;
  const absl::Time until = comm::SteadyNow() + absl::Seconds(2);
  for (int rank = 1; rank < size(); ++rank) {
    const absl::Duration left = std::max(until - comm::SteadyNow(), absl::ZeroDuration());
    store.Get(HeardBy(rank), left).status().IgnoreError();
  }
}

absl::Status ProcessGroup::Follow(Learner& own, const StopSignal& stop,
                                  Heartbeat& heartbeat) const {
  TANDEM_RETURN_IF_ERROR(Lost(FollowCommands(own, members_->link(), stop, heartbeat)));
  const comm::Store& store = members_->met->store;
  const absl::StatusOr<std::string> ended = store.Get(kEnded, absl::Seconds(15));
  int code = ToInt(ExitCodeOfSignal(stop.signal()));
  if (ended.ok() && absl::SimpleAtoi(*ended, &code)) {
    store.Set(HeardBy(rank()), "").IgnoreError();
  }
  if (code == ToInt(ExitCode::kOk)) return absl::OkStatus();
  return WithExitCode(Cancelled("rank 0 ended with exit code ", code), static_cast<ExitCode>(code));
}

void BindOptions(OptionBinder& binder, RankOptions& options) {
  binder.Number("meet_seconds", &options.meet_seconds, {.min = 1}, "s",
                "for all ranks of a launch to find each other");
  binder.Number("deadline_seconds", &options.deadline_seconds, {.min = 1}, "s",
                "of one collective operation: a rank that is further behind is lost");
  binder.Number("lag_seconds", &options.lag_seconds, {.min = 1}, "s",
                "a rank that others wait for longer is named in their logs, and not ended");
  binder.Flag("shard_parameters", &options.shard_parameters,
              "each rank holds its part of weights and gradients only, and gathers them layer by "
              "layer in every pass: for models that do not fit one rank; slower");
  binder.Number("silence_seconds", &options.silence_seconds, {.min = 1}, "s",
                "rank 0 may be silent so long while the others wait for it");
}

}  // namespace tandem::trainer
