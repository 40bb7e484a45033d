// ScriptedScore: the scores of a ScriptedEngine.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "common/base/weight_version.h"
#include "rollout_server/engine/sampling/score_options.h"
#include "tests/rollout_server/step_gate.h"

namespace tandem::rollout::testing {

// Returns its own parameters as scores, one sequence in each slice.
class ScriptedScore : public ScoreRun {
 public:
  // `gate` holds slices back; null lets all pass. `live`: the engine's version. `num_scores`: the
  // engine's count of scores.
  ScriptedScore(std::vector<ScoreSequence> sequences, const ScoreOptions& options, StepGate* gate,
                const WeightVersion* live, int64_t* num_scores)
      : sequences_(std::move(sequences)),
        options_(options),
        gate_(gate),
        live_(live),
        began_under_(*live),
        num_scores_(num_scores) {
    ++*num_scores_;
  }
  ~ScriptedScore() override { --*num_scores_; }

  absl::StatusOr<ScoreProgress> Step() override {
    if (gate_ != nullptr) gate_->Pass();
    if (*live_ != began_under_) return absl::AbortedError("scripted: new weights");
    if (!sequences_.empty() && sequences_[0].ids[0] == 999) return ScoreProgress::kMore;
    if (scores_.size() < sequences_.size()) scores_.push_back(Echo(sequences_[scores_.size()]));
    return scores_.size() < sequences_.size() ? ScoreProgress::kMore : ScoreProgress::kDone;
  }
  std::vector<SequenceScore> Take() override { return std::move(scores_); }

 private:
  SequenceScore Echo(const ScoreSequence& sequence) const {
    const ScoreOptions& o = options_;
    SequenceScore score;
    score.logprobs.assign(sequence.ids.size(),
                          o.path == ScorePath::kDecode ? -2.0f : -o.temperature);
    score.logprobs[0] = 0;
    score.kept_mass = {o.top_p, o.min_p};
    const SitePrecision& bits = o.arithmetic.precision;
    const auto prompt = static_cast<int32_t>(sequence.num_prompt_tokens);
    score.ranks = {o.top_k,        o.alone,      prompt,          bits.body_bits,
                   bits.head_bits, bits.kv_bits, bits.rotary_bits};
    return score;
  }

  const std::vector<ScoreSequence> sequences_;
  const ScoreOptions options_;
  StepGate* const gate_;
  const WeightVersion* const live_;
  const WeightVersion began_under_;
  int64_t* const num_scores_;
  std::vector<SequenceScore> scores_;
};

}  // namespace tandem::rollout::testing
