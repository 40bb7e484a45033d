#include "cli/simulate/pair_model.h"
#include "common/base/status_macros.h"

#include <algorithm>
#include <cmath>
#include <deque>
#include <limits>
#include <map>
#include <set>
#include <utility>

namespace tandem::simulate {
namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();

enum class Phase { kCollect, kTrain, kPrepare, kSend, kInstall, kRecord };

class Simulation {
 public:
  explicit Simulation(const PairPlan& plan) : plan_(plan), losses_(plan.losses) {
    for (int64_t i = 0; i < plan.servers; ++i) servers_.push_back({ServerModel(plan.server)});
    std::ranges::sort(losses_, {}, &ServerLoss::at_seconds);
  }

  absl::StatusOr<PairResult> Run() {
    Enter(Phase::kCollect, kNever);
    AskForGroups();
    size_t next_loss = 0;
    while (step() < plan_.steps) {
      Dispatch();
      if (phase_ == Phase::kCollect && finished_of_step_[step()] == plan_.prompts_per_step) {
        if (plan_.shared_machine) CatchAll();
        BeginTraining();
      }
      if (plan_.shared_machine) ScheduleAll();
      const double phase_end =
          phase_ == Phase::kCollect ? kNever : phase_updated_at_ + phase_left_ / rate_;
      const double server_event = events_.empty() ? kNever : events_.begin()->first;
      const double loss = next_loss < losses_.size() ? losses_[next_loss].at_seconds : kNever;
      const double next = std::min({phase_end, server_event, loss});
      if (next == kNever) return absl::UnavailableError("every server is lost");
      now_ = std::max(now_, next);
      if (plan_.shared_machine) CatchAll();
      if (loss == next) {
        CatchAll();
        LoseServer(losses_[next_loss++].server);
        ScheduleAll();
      } else if (server_event == next) {
        const size_t i = events_.begin()->second;
        Catch(i);
        Schedule(i);
      } else {
        const bool installs = phase_ == Phase::kInstall;
        if (installs) CatchAll();  // tokens decoded before now have the previous version
        EndPhase();
        if (installs) ScheduleAll();
      }
    }
    result_.seconds = now_;
    for (const Server& server : servers_) {
      result_.server_busy_seconds.push_back(server.model.busy_seconds());
      result_.server_mean_batch.push_back(server.model.mean_batch());
      result_.prefill_seconds += server.model.prefill_seconds();
    }
    return std::move(result_);
  }

 private:
  struct Server {
    ServerModel model;
    bool alive = true;
    double updated_at = 0;
    double next_event = kNever;
  };

  int64_t step() const { return static_cast<int64_t>(result_.steps.size()); }

  // The share of the machine's cores that one busy process gets.
  double Rate() const {
    if (!plan_.shared_machine) return 1;
    const auto busy =
        std::ranges::count_if(servers_, [](const Server& s) { return s.model.busy(); });
    return 1.0 / static_cast<double>(std::max<int64_t>(1, busy + (phase_ != Phase::kCollect)));
  }

  // Advances server i to the current time.
  void Catch(size_t i) {
    Server& server = servers_[i];
    const double seconds = (now_ - server.updated_at) * rate_;
    server.updated_at = now_;
    if (!server.alive) return;
    Take(server.model.Advance(std::min(seconds, server.model.SecondsToEvent())));
  }

  void Schedule(size_t i) {
    Server& server = servers_[i];
    events_.erase({server.next_event, i});
    server.next_event = server.alive ? now_ + server.model.SecondsToEvent() / rate_ : kNever;
    if (server.next_event < kNever) events_.insert({server.next_event, i});
  }

  void CatchAll() {
    for (size_t i = 0; i < servers_.size(); ++i) Catch(i);
    phase_left_ = std::max(0.0, phase_left_ - (now_ - phase_updated_at_) * rate_);
    phase_updated_at_ = now_;
  }

  void ScheduleAll() {
    rate_ = Rate();
    for (size_t i = 0; i < servers_.size(); ++i) Schedule(i);
  }

  void Take(std::vector<GroupWork> ended) {
    for (GroupWork& work : ended) {
      ++finished_of_step_[work.group / plan_.prompts_per_step];
      finished_.emplace(work.group, std::move(work));
    }
  }

  // Sends waiting groups to the server with the fewest, until all servers are full.
  void Dispatch() {
    while (!queue_.empty()) {
      size_t best = servers_.size();
      for (size_t i = 0; i < servers_.size(); ++i) {
        if (!servers_[i].alive || servers_[i].model.groups_in_flight() >= plan_.groups_in_flight) {
          continue;
        }
        if (best == servers_.size() ||
            servers_[i].model.groups_in_flight() < servers_[best].model.groups_in_flight()) {
          best = i;
        }
      }
      if (best == servers_.size()) return;
      Catch(best);
      servers_[best].model.Submit(std::move(queue_.front()));
      queue_.pop_front();
      Schedule(best);
    }
  }

  void AskForGroups() {
    const int64_t end = (installed_steps_ + plan_.max_staleness + 1) * plan_.prompts_per_step;
    for (; next_group_ < end; ++next_group_) {
      GroupWork work = plan_.work(next_group_);
      work.group = next_group_;
      queue_.push_back(std::move(work));
      ++slots_taken_;
    }
    current_.slots_taken = std::max(current_.slots_taken, slots_taken_);
  }

  void BeginTraining() {
    const int64_t first = step() * plan_.prompts_per_step;
    finished_of_step_.erase(step());
    double staleness = 0;
    for (int64_t id = first; id < first + plan_.prompts_per_step; ++id) {
      const auto node = finished_.extract(id);
      const GroupWork& work = node.mapped();
      current_.sampled.packed_tokens += work.kv_tokens();
      current_.sampled.tokens += work.kv_tokens() - work.prompt_tokens;
      for (const int64_t length : work.lengths) {
        current_.sampled.longest = std::max(current_.sampled.longest, length);
      }
      current_.max_staleness = std::max(current_.max_staleness, step() - work.version);
      staleness += static_cast<double>(step() - work.version);
    }
    current_.mean_staleness = staleness / static_cast<double>(plan_.prompts_per_step);
    current_.alone = plan_.trainer(step(), current_.sampled);
    current_.rollout = now_ - phase_began_;
    Enter(Phase::kTrain, current_.alone.compute + current_.alone.reduce);
  }

  void Enter(Phase phase, double seconds) {
    phase_ = phase;
    phase_began_ = phase_updated_at_ = now_;
    phase_left_ = seconds;
  }

  void EndPhase() {
    const double seconds = now_ - phase_began_;
    switch (phase_) {
      case Phase::kCollect:
        return;
      case Phase::kTrain:
        current_.train = seconds;
        return Enter(Phase::kPrepare, current_.alone.prepare);
      case Phase::kPrepare:
        current_.push += seconds;
        return Enter(Phase::kSend, current_.alone.send);
      case Phase::kSend:
        current_.push += seconds;
        return Enter(Phase::kInstall, current_.alone.install);
      case Phase::kInstall:
        current_.push += seconds;
        ++installed_steps_;
        slots_taken_ -= plan_.prompts_per_step;
        for (Server& server : servers_) {
          server.model.SetVersion(installed_steps_);
          server.model.Stall(plan_.pause_seconds);
        }
        return Enter(Phase::kRecord, current_.alone.record);
      case Phase::kRecord:
        current_.record = seconds;
        current_.end = now_;
        result_.steps.push_back(std::exchange(current_, StepTimes{.begin = now_}));
        Enter(Phase::kCollect, kNever);
        AskForGroups();
    }
  }

  void LoseServer(int64_t server) {
    Server& lost = servers_[static_cast<size_t>(server)];
    lost.alive = false;
    std::vector<GroupWork> again = lost.model.Lose();
    std::ranges::sort(again, std::greater<>(), &GroupWork::group);
    for (GroupWork& work : again) queue_.push_front(std::move(work));
  }

  const PairPlan& plan_;
  std::vector<ServerLoss> losses_;
  std::vector<Server> servers_;
  std::set<std::pair<double, size_t>> events_;  // (time, server)
  double now_ = 0, rate_ = 1;

  std::deque<GroupWork> queue_;            // groups that wait for a server
  std::map<int64_t, GroupWork> finished_;  // by id, before they are trained on
  std::map<int64_t, int64_t> finished_of_step_;
  int64_t next_group_ = 0, installed_steps_ = 0, slots_taken_ = 0;

  Phase phase_ = Phase::kCollect;
  double phase_began_ = 0, phase_left_ = 0, phase_updated_at_ = 0;
  StepTimes current_;
  PairResult result_;
};

}  // namespace

absl::StatusOr<PairResult> SimulatePair(const PairPlan& plan) {
  if (plan.steps < 1 || plan.prompts_per_step < 1 || plan.servers < 1 ||
      plan.groups_in_flight < 1 || plan.max_staleness < 0) {
    return InvalidArgument("steps ", plan.steps, ", prompts ", plan.prompts_per_step, ", servers ",
                           plan.servers, ", groups in flight ", plan.groups_in_flight,
                           ": each at least 1; staleness ", plan.max_staleness, ": at least 0");
  }
  for (const ServerLoss& loss : plan.losses) {
    if (loss.server < 0 || loss.server >= plan.servers) {
      return InvalidArgument("no server ", loss.server, " can be lost");
    }
  }
  return Simulation(plan).Run();
}

StepTimes MeanOf(const PairResult& result, size_t first) {
  StepTimes mean;
  const auto n = static_cast<double>(result.steps.size() - first);
  double tokens = 0, packed = 0;
  for (size_t i = first; i < result.steps.size(); ++i) {
    const StepTimes& step = result.steps[i];
    mean.rollout += step.rollout / n;
    mean.train += step.train / n;
    mean.push += step.push / n;
    mean.record += step.record / n;
    mean.mean_staleness += step.mean_staleness / n;
    mean.alone.compute += step.alone.compute / n;
    mean.alone.reduce += step.alone.reduce / n;
    mean.alone.prepare += step.alone.prepare / n;
    mean.alone.send += step.alone.send / n;
    mean.alone.install += step.alone.install / n;
    mean.alone.record += step.alone.record / n;
    tokens += static_cast<double>(step.sampled.tokens) / n;
    packed += static_cast<double>(step.sampled.packed_tokens) / n;
    mean.sampled.longest = std::max(mean.sampled.longest, step.sampled.longest);
    mean.max_staleness = std::max(mean.max_staleness, step.max_staleness);
    mean.slots_taken = std::max(mean.slots_taken, step.slots_taken);
  }
  mean.sampled.tokens = std::llround(tokens);
  mean.sampled.packed_tokens = std::llround(packed);
  mean.end = (result.steps.back().end - result.steps[first].begin) / n;
  return mean;
}

}  // namespace tandem::simulate
