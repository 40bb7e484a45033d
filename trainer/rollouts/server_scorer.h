// ServerScorer: asks rollout servers for the log-probs of given completions (rpc Score). Used by
// the trainer's loop and its client for the additive split and the probe set. Thread-safe; tasks of
// one ScoreEach run side by side.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "proto/experience.pb.h"
#include "proto/rollout.pb.h"
#include "trainer/experience/group_logprobs.h"
#include "trainer/rollouts/server_pool.h"

namespace tandem::trainer {

struct ScoredByServer {
  int64_t version = 0;  // of the weights that scored
  GroupLogprobs logprobs;
};

// The groups that one server is asked to score.
struct ScoreTask {
  int server = 0;
  std::vector<const experience::v1::ScoredGroup*> groups;
};

class ServerScorer {
 public:
  // `pool` must outlive this object.
  ServerScorer(const ServerPool* pool, double timeout_seconds)
      : pool_(pool), timeout_seconds_(timeout_seconds) {}

  // The completions of each task that are not masked, scored as `how` says (run id included; its
  // sequences are filled in), in calls of bounded size, each with `timeout_seconds`. A busy server
  // (rpc::IsBusy) is asked again when it says, for as long as one call may take. One result per
  // task, in order:
  //   ABORTED             new weights came between two calls
  //   RESOURCE_EXHAUSTED, INVALID_ARGUMENT  by the name of the refusal (rpc::RefusalOf): the server
  //                       was busy all the time, or the call is too large and would be for ever
  //   others of the call, naming the server; those that say that it is gone, hangs or is broken are
  //   not ServerIsFine (call_end.h)
  std::vector<absl::StatusOr<ScoredByServer>> ScoreEach(const std::vector<ScoreTask>& tasks,
                                                        const rollout::v1::ScoreRequest& how) const;

 private:
  absl::StatusOr<ScoredByServer> Score(const ScoreTask& task,
                                       const rollout::v1::ScoreRequest& how) const;

  const ServerPool* const pool_;
  const double timeout_seconds_;
};

}  // namespace tandem::trainer
