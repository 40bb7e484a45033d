// RunState: where a training run stands between two train steps. Plain values that the loop
// (trainer.cc) changes, and that RunLog and Checkpointer read; Checkpointer also restores them.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "common/base/weight_version.h"
#include "trainer/experience/experience_buffer.h"
#include "trainer/prompts/success_counts.h"

namespace tandem::trainer {

// What was chosen for a group.
struct PlannedGroup {
  int64_t prompt = 0;  // PromptSource::Row
  int64_t epoch = 0;
  int64_t num_completions = 0;
};

struct RunState {
  std::string run_id;
  bool resumed = false;
  WeightVersion version;  // of the learner's weights
  Frontier frontier;      // what was neither trained on nor given up
  // What was chosen for the groups from the frontier on that were asked for, by id. A run that is
  // resumed asks for the same.
  std::map<int64_t, PlannedGroup> planned;
  std::vector<PromptCounts> prompt_counts;  // of the groups before the frontier, where they matter
  // False while a train step changes the weights, and from then on if that step failed.
  bool weights_known = true;
  bool stopped_by_alert = false;
  std::string roll_back_reason;  // not empty: the run ends with its best checkpoint, and why

  int64_t skipped_in_row = 0;  // train steps that made no weights, up to now
  // What was skipped since the last line of metrics.jsonl. The next line counts it, because a step
  // that makes no version has no number of its own. The groups are kept without their completions.
  int64_t unrecorded_skips = 0;
  std::vector<DroppedGroup> unrecorded_drops;
};

}  // namespace tandem::trainer
