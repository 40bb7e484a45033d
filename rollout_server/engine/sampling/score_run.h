// ScoreRun: a Score that is computed slice by slice, so that decode steps, pushes and cancellation
// come in between. Made by Engine::StartScore.
//
// Use from the engine's thread only, and destroy it before the engine: it gives back the KV it was
// lent. It computes under one version of the weights from the first slice to the last.
#pragma once

#include <vector>

#include "absl/status/statusor.h"
#include "rollout_server/engine/sampling/score_options.h"

namespace tandem::rollout {

enum class ScoreProgress {
  kMore,   // call Step again
  kWaits,  // nothing was computed: other runs hold the KV that it needs; call Step again later
  kDone,   // Take the scores
};

class ScoreRun {
 public:
  virtual ~ScoreRun() = default;

  // Computes one slice: at most 256 tokens of prompts, or a token of each sequence. After an error
  // only destroy it.
  //   ABORTED             new weights were installed since the run began
  //   RESOURCE_EXHAUSTED  a sequence needs more KV than groups leave, or they took it back again
  //                       and again
  //   DATA_LOSS           a logit is NaN or +inf
  //   UNIMPLEMENTED, INTERNAL  as TokenRunner::Run
  virtual absl::StatusOr<ScoreProgress> Step() = 0;

  // One for each sequence, after kDone.
  virtual std::vector<SequenceScore> Take() = 0;
};

}  // namespace tandem::rollout
