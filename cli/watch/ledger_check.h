// Whether the ledger of a run (trainer/run/ledger.h) balances, in itself and with the other records
// of its directory. Used by `tandem ledger` and by tests.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace tandem::cli {

struct LedgerTotals {
  int64_t steps = 0, skipped_steps = 0;
  int64_t groups = 0, trained = 0, skipped = 0;  // groups of skipped steps that could be trained
  std::map<std::string, int64_t> dropped;        // by reason
  int64_t asked = 0;                             // completions
  int64_t completions = 0, trained_completions = 0;
  int64_t tokens = 0, trained_tokens = 0;
};

struct LedgerReport {
  LedgerTotals totals;
  std::vector<std::string> problems;  // one sentence each; empty: it balances
  std::vector<std::string> notes;     // what a run that goes on, or was killed, leaves open
};

// Reads RUN/ledger.sqlite and compares it with RUN/metrics.jsonl, RUN/rollouts and RUN/checkpoints:
//   every group from 0 on has one fate, in the one step whose range holds it, and the ranges adjoin;
//   every version was made by one step, in order;
//   the sums of a step are those of its groups; dropped groups have a reason and trained ones a
//   completion that was trained; none has more completions than were asked for;
//   rollouts/step_N names the groups that step N took, with the same reasons and tokens;
//   a line of metrics.jsonl counts the drops of its step and of the skipped ones before it;
//   a checkpoint goes on from the end of its step.
//   NOT_FOUND         no run, or one without a ledger
//   INVALID_ARGUMENT  a ledger of another format;  UNAVAILABLE  it cannot be read
absl::StatusOr<LedgerReport> CheckLedger(const std::string& run);

}  // namespace tandem::cli
