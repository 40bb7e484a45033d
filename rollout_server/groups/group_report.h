// GroupReport: how one group went, for metrics and spans. Plain values, made by GroupRegistry.
#pragma once

#include <cstdint>

#include "common/observe/tracer.h"

namespace tandem::rollout {

struct GroupReport {
  int64_t group_id = 0;
  TraceContext trace;  // of the first call that asked for it; may be none
  // Seconds on the registry's clock: the call came, the engine took it up, its first token was
  // drawn, its last was.
  double arrived = 0, started = 0, decoding = 0, ended = 0;
  int64_t num_completions = 0;
  int64_t num_tokens = 0, longest_tokens = 0;  // of all completions, of the longest
  int64_t num_spanning_tokens = 0;  // of completions that more than one weight version drew
};

// Mean time between two tokens of the longest completion; 0 for one of a single token.
inline double SecondsBetweenTokens(const GroupReport& report) {
  if (report.longest_tokens < 2) return 0;
  return (report.ended - report.decoding) / static_cast<double>(report.longest_tokens - 1);
}

// "generate_group" with its children "queue", "prefill" and "decode". `ended_unix_ns` is the moment
// report.ended.
void RecordSpans(const GroupReport& report, int64_t ended_unix_ns, Tracer* tracer);

}  // namespace tandem::rollout
