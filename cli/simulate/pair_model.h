// PairModel: trainer and rollout servers as a discrete-event simulation, ordered as the program is:
//
//   ask for a group per free slot | wait for the P groups of the step | train | prepare, send,
//   install the weights | slots of the step are free | record | ask ...
//
// The trainer does one of these at a time (trainer/trainer.cc); servers sample whenever they have
// groups. There are (S+1)*P slots; one is taken when a group is asked for, and freed when the
// servers have installed what the group helped to make (trainer/experience/experience_buffer.h), so with S = 0
// nothing overlaps, and with S >= 1 sampling goes on while the trainer trains. A step trains groups
// kP .. kP+P-1, so it waits for the last of them. Every server has up to `groups_in_flight`; a
// group that was asked for waits for the next that has room (rollout_client.h).
//
// Pure: no clock, no thread, no random number.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "cli/simulate/server_model.h"

namespace tandem::simulate {

// Seconds of the trainer alone on its machine.
struct TrainerSeconds {
  double compute = 0;  // forward, backward, optimizer
  double reduce = 0;   // sums and gathers over ranks that are not hidden behind compute
  double prepare = 0;  // cast, digests, deltas
  double send = 0;
  double install = 0;  // digests and packing at the servers, which decode meanwhile
  double record = 0;   // between the push and the next request: metrics, checkpoints

  double push() const { return prepare + send + install; }
};

// What a step trains on.
struct Sampled {
  int64_t tokens = 0;         // of completions
  int64_t packed_tokens = 0;  // and the prompt of each group once
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
  double pause_seconds = 0;  // of every server's decoding, at the end of a push
  // All processes share the cores of one machine: each that is busy gets an equal part.
  bool shared_machine = false;
  std::vector<ServerLoss> losses;  // its groups start anew at another server

  // Group id -> its prompt and lengths; asked once a group. `version` is filled in.
  std::function<GroupWork(int64_t group)> work;
  // Step (from 0) and what was sampled for it -> what it costs.
  std::function<TrainerSeconds(int64_t step, const Sampled& sampled)> trainer;
};

// One train step, as metrics.jsonl states it.
struct StepTimes {
  double rollout = 0;  // waiting for groups
  double train = 0, push = 0, record = 0;
  double begin = 0, end = 0;  // of all, since the start
  TrainerSeconds alone;       // what the trainer would take on a machine of its own
  Sampled sampled;
  double mean_staleness = 0;  // over groups, of the oldest token
  int64_t max_staleness = 0;
  int64_t slots_taken = 0;  // at its largest since the step before

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
//   INVALID_ARGUMENT     no steps, prompts, servers or groups in flight; a negative staleness
//   UNAVAILABLE          all servers are lost
absl::StatusOr<PairResult> SimulatePair(const PairPlan& plan);

// Mean over steps [first, steps.size()): what a run settles to. `first` < steps.size().
StepTimes MeanOf(const PairResult& result, size_t first);

}  // namespace tandem::simulate
