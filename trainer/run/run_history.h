// RunHistory: what the trainer writes into its history (common/observe/history.h): the groups it
// asked for, received, trained or gave up, the versions it delivered and saved. docs/run_directory.md has
// the schema. Used by trainer.cc. Does nothing where no history was opened. Thread-compatible.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "common/base/weight_version.h"
#include "common/observe/history.h"
#include "proto/experience.pb.h"
#include "trainer/run/run_directory.h"

namespace tandem::trainer {

class RunHistory {
 public:
  // The state that this process begins with. It tells which records of the processes before it are
  // taken back.
  struct Begin {
    std::string run_id;
    bool resumed = false;
    WeightVersion version;    // of the checkpoint, or 0
    int64_t first_group = 0;  // groups before it are not asked for
    int64_t groups_per_step = 0, num_completions = 0, max_staleness = 0;
  };

  // Writes to a file of this process in `directory`. Errors of History::Open.
  absl::Status Open(const std::string& directory);

  void Began(const Begin& begin);
  void Asked(int64_t group_id, int64_t min_weight_version);
  void Received(const experience::v1::ScoredGroup& group);  // fit to train on, so far
  // The step that makes `made` from the weights before it.
  void Trained(WeightVersion made, const std::vector<experience::v1::ScoredGroup>& groups);
  // An event of events.jsonl, with its fields: deliveries, drops, skipped steps, checkpoints.
  void Event(int64_t step, const std::string& kind, const std::string& message,
             const JsonFields& fields);

 private:
  std::unique_ptr<History> history_;  // null: off
};

}  // namespace tandem::trainer
