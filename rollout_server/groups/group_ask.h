// GroupAsk: one call for a group, as GroupRegistry takes it from RolloutService.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <string>

#include "common/observe/tracer.h"
#include "rollout_server/engine/schedule/group.h"
#include "rollout_server/groups/admission_batches.h"

namespace tandem::rollout {

struct GroupAsk {
  std::string run_id;  // empty: a guest, whose groups are not remembered
  // Who asks (ScopeOf, ownership.h): groups of another caller are other groups, whatever their
  // run and number.
  std::string caller;
  // A guest's, while a run owns the server: guests get half of the queue and of memory_bytes.
  bool yields = false;
  bool unowned = false;  // nobody owned the server when it was let in
  int64_t group_id = 0;
  std::string fingerprint;  // equal for equal questions
  GroupRequest request;     // its key is set here
  std::optional<AdmissionBatches::BatchRef> batch;
  double seconds_left = std::numeric_limits<double>::infinity();  // until the caller's deadline
  TraceContext trace;              // the caller's span; none: not traced
  int64_t min_weight_version = 0;  // no token may be of older weights
  int64_t live_version = 0;        // no token of a group that starts from now on is
};

}  // namespace tandem::rollout
