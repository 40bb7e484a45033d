// BestCheckpoint: the checkpoint that a run goes back to when it has passed its KL budget
// (alerts.on_kl: roll_back), kept beyond checkpoint.keep. Used by trainer.cc, from its thread.
//
// It lies in CHECKPOINTS/best/step_N, as hard links to the files of CHECKPOINTS/step_N where the
// file system has them, and as copies elsewhere; best.json says why it is the best:
//
//   {"step": 8, "metric": "eval/gold", "value": 0.71}
//
// The run names one metric, which the lines of some or all of its steps have. Until a checkpoint
// has it, the newest one within the budget is the best.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "trainer/checkpoints/checkpoint.h"
#include "trainer/metrics/metrics_line.h"

namespace tandem::trainer {

// What the checkpoints of a run are compared by. Empty `metric`: nothing, the newest is the best.
struct BestChoice {
  int64_t step = 0;
  std::string metric;
  double value = 0;  // of the metric
};

// Whether a checkpoint of `next` replaces `best` within the budget: where both have the metric, a
// larger value, and of equal ones the newer; one that has it replaces one that has not. Pure.
bool Replaces(const BestChoice& best, const BestChoice& next);

// The checkpoint of a step by `metric` of its line, without one where the line lacks it. Pure.
BestChoice ChoiceOf(int64_t step, const std::string& metric, const MetricsLine& line);

class BestCheckpoint {
 public:
  // `checkpoints`: the directory of the run's checkpoints. An empty `metric`: the newest is the
  // best.
  BestCheckpoint(std::string checkpoints, std::string metric);

  // Takes up what a resumed run had, unless it is of a step after `step`.
  absl::Status Open(int64_t step);

  // The checkpoint of `line`'s step was saved, and its KL is within the budget.
  //   UNAVAILABLE, RESOURCE_EXHAUSTED  it could not be kept; the best one before stands
  absl::Status Note(int64_t step, const MetricsLine& line);

  const std::optional<BestChoice>& best() const { return best_; }

  // Reads and verifies it.
  //   NOT_FOUND  no checkpoint was noted;  others of LoadCheckpoint
  absl::StatusOr<Checkpoint> Load(const CheckpointIdentity& identity) const;

 private:
  const std::string checkpoints_, directory_, metric_;
  std::optional<BestChoice> best_;
};

// "step 8 (eval/gold 0.71, the best of the run)"
std::string Describe(const BestChoice& best);

}  // namespace tandem::trainer
