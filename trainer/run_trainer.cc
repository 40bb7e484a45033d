#include "trainer/run_trainer.h"

#include <algorithm>
#include <cstdio>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/exit_codes.h"
#include "common/files/file_system.h"
#include "common/hub/model_options.h"
#include "common/options/command_line.h"
#include "common/process/memory.h"
#include "common/process/stop_signal.h"
#include "common/rendezvous/rank_environment.h"
#include "common/rpc/credentials.h"
#include "trainer/policy_learner.h"
#include "trainer/ranks/device_choice.h"
#include "trainer/ranks/process_group.h"

namespace tandem::trainer {
namespace {

void ShowRank(const comm::RankEnvironment& self, MetricsRegistry* metrics) {
  metrics->GetGauge("tandem_trainer_rank", "Rank of this process.")->Set(self.rank);
  metrics->GetGauge("tandem_trainer_ranks", "Ranks that train together.")->Set(self.world_size);
  metrics->GetGauge("tandem_trainer_restarts", "How often the launcher started this job again.")
      ->Set(self.restart);
}

// Who said which rank this is, and what a container may lack for it.
void LogLaunch(const comm::RankEnvironment& self, Device device) {
  if (self.source != "none") {
    log::Info("rank of a launch",
              {{"rank", self.rank},
               {"of", self.world_size},
               {"said_by", self.source},
               {"local_rank", self.local_rank},
               {"rank_0_at", absl::StrCat(self.master_host, ":", self.master_port)},
               {"launch", self.launch_id},
               {"restart", self.restart}});
  }
  if (device != Device::kCuda || self.local_world_size == 1) return;
  const std::string problem = SharedMemoryProblem(SharedMemoryBytes());
  if (!problem.empty()) log::Warning(problem);
}

// The loop of rank 0, to its end. The other ranks hear the exit code.
int Lead(const TrainerOptions& options, TrainerContext context, std::unique_ptr<Learner> learner,
         StopSignal* stop, ProcessGroup& ranks) {
  const auto end_all = [&](ExitCode code) {
    ranks.End(code);
    return code;
  };
  ranks.TakeStopsOfOthers(stop);
  auto trainer = Trainer::Create(options, ranks.Lead(std::move(learner)), std::move(context));
  if (!trainer.ok()) return Fail(trainer.status(), end_all(ExitCodeOf(trainer.status())));
  const absl::Status end = (*trainer)->Run();
  const bool cut = stop->Requested() && !(*trainer)->finished();
  trainer->reset();  // gives the servers back, and tells the other ranks that it is over
  if (end.ok()) return ToInt(end_all(cut ? ExitCodeOfSignal(stop->signal()) : ExitCode::kOk));
  if (IsStop(ExitCodeOf(end))) return Fail(end, end_all(ExitCodeOfSignal(stop->signal())));
  if (ExitCodeOf(end) == ExitCode::kRankLost) {
    ranks.RecordFlight(options.out + "/" + options.run_name);
  }
  return Fail(end, end_all(ExitCodeOf(end)));
}

int Follow(const TrainerOptions& options, Learner& learner, const StopSignal& stop,
           TrainerHealth& health, const ProcessGroup& ranks) {
  health.SetStarted(absl::StrCat("rank ", ranks.rank(), " follows rank 0"));
  const absl::Status end = ranks.Follow(learner, stop, *health.heartbeat());
  if (end.ok()) return ToInt(ExitCode::kOk);
  if (ExitCodeOf(end) == ExitCode::kRankLost) {
    ranks.RecordFlight(options.out + "/" + options.run_name);
  }
  return Fail(end, ExitCodeOf(end));
}

}  // namespace

int Fail(const absl::Status& status, ExitCode code) {
  PrintFailure("trainer", status);
  return ToInt(code);
}

absl::Status PinModels(bool goes_on, TrainerOptions& options) {
  std::string before;
  if (goes_on) {
    before =
        ReadFile(absl::StrCat(options.out, "/", options.run_name, "/config.yaml")).value_or("");
  }
  std::vector<std::string> notes;
  const absl::Status pinned =
      hub::PinModels(ModelOptions(options), before, hub::ReadHubSettings(), &notes);
  for (const std::string& note : notes) std::fprintf(stderr, "trainer: %s\n", note.c_str());
  return pinned;
}

int RunTrainer(TrainerOptions options, TrainerContext context) {
  const absl::Status found = hub::FindModels(ModelOptions(options), hub::ReadHubSettings());
  if (!found.ok()) return Fail(found, ExitCode::kBadModelOrData);
  const auto self = comm::ReadRankEnvironment(comm::ProcessEnvironment());
  if (!self.ok()) return Fail(self.status(), ExitCode::kUsage);
  const absl::Status chosen = ChooseDevice(options.learner.device, self->local_rank);
  if (!chosen.ok()) return Fail(chosen, ExitCode::kBadModelOrData);
  const bool alone = self->world_size == 1;
  if (options.learner.num_threads == 0 && self->local_world_size > 1) {
    const auto cores = static_cast<int64_t>(std::thread::hardware_concurrency());
    options.learner.num_threads = std::max<int64_t>(1, cores / self->local_world_size);
  }
  options.log.role = alone ? "trainer" : absl::StrCat("trainer ", self->rank);
  if (self->rank > 0 && !options.log.file.empty()) {
    absl::StrAppend(&options.log.file, ".rank", self->rank);
  }
  const absl::Status log = log::Configure(options.log);
  if (!log.ok()) return Fail(log, ExitCode::kStorage);
  LogLaunch(*self, options.learner.device);
  if (self->rank == 0) {  // who alone talks to servers; before the model is loaded
    const absl::Status tls = rpc::Caller::Check(options.tls, {rpc::Role::kTrainer}, "trainer");
    if (!tls.ok()) return Fail(tls, ExitCode::kUsage);
  }
  StopSignal stop;
  context.stop = &stop;
  std::optional<EndWhileLoading> loading(std::in_place, stop);
  Observation observation("trainer");
  if (self->local_rank == 0) {
    const absl::Status served = observation.Serve(options.observe_listen);
    if (!served.ok()) return Fail(served, ExitCode::kUsage);
  }
  ShowRank(*self, observation.metrics());
  TrainerHealth health(observation.health(), options.liveness_seconds);
  context.observation = &observation;
  context.health = &health;
  const auto ranks = ProcessGroup::Join(*self, options.ranks, options.learner.device,
                                        options.run_name, context.resolved_config);
  if (!ranks.ok()) return Fail(ranks.status(), ExitCodeOf(ranks.status()));
  auto learner = CreatePolicyLearner({.model_directory = options.model,
                                      .options = options.learner,
                                      .advantage = options.advantage,
                                      .temperature = options.sampling.temperature,
                                      .max_new_tokens = LongestCompletion(options),
                                      .collectives = (*ranks)->collectives(),
                                      .shard_parameters = options.ranks.shard_parameters,
                                      .seed = static_cast<uint64_t>(options.seed)});
  if (!learner.ok()) {
    if ((*ranks)->rank() == 0) (*ranks)->End(ExitCode::kBadModelOrData);
    return Fail(learner.status(), ExitCode::kBadModelOrData);
  }
  loading.reset();
  return (*ranks)->rank() == 0
             ? Lead(options, std::move(context), *std::move(learner), &stop, **ranks)
             : Follow(options, **learner, stop, health, **ranks);
}

}  // namespace tandem::trainer
