// SimulatePair: a discrete-event simulation of the trainer and the rollout servers. The trainer
// repeats:
//
//   ask for a group per free slot | wait for the P groups of the step | train | prepare, send and
//   install the weights | free the slots of the step | record
//
// It does one of these at a time (trainer/trainer.cc), and servers sample whenever they have
// groups. There are (S+1)*P slots. A slot is taken when a group is asked for, and freed when the
// servers have installed the weights that the group helped to make
// (trainer/experience/experience_buffer.h). So with S = 0 nothing overlaps, and with S >= 1 servers
// sample while the trainer trains. Step k trains groups kP to kP+P-1, so it waits for the last of
// them. A server has at most `groups_in_flight` groups, and further groups wait for a free place
// (rollout_client.h).
//
// Pure: no clock, no thread, no random number.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "absl/status/statusor.h"
#include "cli/simulate/server_model.h"

namespace tandem::simulate {

// Durations of the trainer's work on a machine of its own.
struct TrainerSeconds {
  double compute = 0;  // forward, backward, optimizer
  double reduce = 0;   // collectives of the ranks that do not overlap with compute
  double prepare = 0;  // cast, digests, deltas
  double send = 0;
  double install = 0;  // digests and packing at the servers, which continue to decode
  double record = 0;   // between the push and the next request: metrics, checkpoints

  double push() const { return prepare + send + install; }
};

// The tokens on which a step trains.
struct Sampled {
  int64_t tokens = 0;         // of completions
  int64_t packed_tokens = 0;  // the same and the prompt of each group once
  int64_t longest = 0;        // completion
};

struct ServerLoss {
  int64_t server = 0;
  double at_seconds = 0;
};

struct PairPlan {
  int64_t steps = 8;
  int64_t prompts_per_step = 8;  // P
  int64_t max_staleness = 0;     // S
  int64_t servers = 1;
  int64_t groups_in_flight = 8;  // of a server
  ServerSpeed server;
  double pause_seconds = 0;  // for which every server stops decoding at the end of a push
  // All processes share the cores of one machine, and each busy one gets an equal part.
  bool shared_machine = false;
  std::vector<ServerLoss> losses;  // the groups of a lost server restart at another one

  // Returns the prompt and lengths of a group. It is called once per group, and `version` is set
  // later.
  std::function<GroupWork(int64_t group)> work;
  // Returns the durations of a step (counted from 0) that trains on `sampled`.
  std::function<TrainerSeconds(int64_t step, const Sampled& sampled)> trainer;
};

// One train step, with the durations of metrics.jsonl.
struct StepTimes {
  double rollout = 0;  // waiting for groups
  double train = 0, push = 0, record = 0;
  double begin = 0, end = 0;  // of the whole step, since the start of the run
  TrainerSeconds alone;       // without processes that share the machine
  Sampled sampled;
  double mean_staleness = 0;  // of the oldest token of a group, over groups
  int64_t max_staleness = 0;
  int64_t slots_taken = 0;  // the largest number since the previous step

  double step() const { return rollout + train + push; }  // time/step: record comes after it
  double period() const { return end - begin; }
};

struct PairResult {
  std::vector<StepTimes> steps;
  double seconds = 0;
  std::vector<double> server_busy_seconds, server_mean_batch;
  double prefill_seconds = 0;  // of all servers
};

// Runs `plan.steps` train steps.
//   INVALID_ARGUMENT  steps, prompts, servers or groups in flight are 0, or staleness is negative
//   UNAVAILABLE       all servers are lost
absl::StatusOr<PairResult> SimulatePair(const PairPlan& plan);

// The mean over steps [first, steps.size()), the steady state of a run. `first` < steps.size().
StepTimes MeanOf(const PairResult& result, size_t first);

}  // namespace tandem::simulate
