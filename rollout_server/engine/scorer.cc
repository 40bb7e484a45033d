#include "rollout_server/engine/scorer.h"

#include <algorithm>
#include <span>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "rollout_server/engine/sampler.h"

namespace tandem::rollout {
namespace {

constexpr int64_t kStepTokens = 256;  // of prompts, computed together

// A sequence on its way through the model. The last id is never computed: nothing is asked about
// what follows.
struct Lane {
  size_t sequence = 0;
  std::vector<BlockId> blocks;
  int64_t end = 0;           // positions [0, end) are computed
  int64_t first_single = 0;  // from this position on, one in a step
  int64_t next = 0;          // position
  size_t segment = 0;        // of next
};

// A token whose logits are wanted: they predict token `position + 1` of `sequence`.
struct Prediction {
  size_t sequence = 0;
  int64_t position = 0;
};

struct Step {
  const StagedWeights* weights = nullptr;
  std::vector<TokenInput> inputs;
  std::vector<int64_t> rows;
  std::vector<Prediction> predictions;  // one for each row
};

// The lanes that go through the model together. Gives their blocks back.
class Batch {
 public:
  Batch(const ScoreContext& context, const std::vector<ScoreSequence>& sequences,
        const ScoreOptions& options)
      : context_(context), sequences_(sequences), options_(options) {}
  ~Batch() {
    for (const Lane& lane : lanes_) context_.scheduler->GiveBack(lane.blocks);
  }
  Batch(const Batch&) = delete;
  Batch& operator=(const Batch&) = delete;

  // Takes sequences from `first` on: one when alone; in decode as many as blocks and lanes last
  // for; in prefill as many as fill one step, so that no more blocks are lent than that needs.
  absl::Status Fill(size_t first) {
    const int64_t most = options_.alone ? 1 : context_.max_sequences;
    int64_t tokens = 0;
    for (size_t s = first; s < sequences_.size() && size() < most; ++s) {
      const int64_t end = static_cast<int64_t>(sequences_[s].ids.size()) - 1;
      const bool decode = options_.path == ScorePath::kDecode;
      tokens += end;
      if (!decode && !lanes_.empty() && tokens > StepTokens()) break;
      auto blocks = context_.scheduler->Borrow(KvBlockPool::BlocksFor(end));
      if (!blocks) break;
      lanes_.push_back({s, *std::move(blocks), end,
                        decode ? std::min(end, sequences_[s].num_prompt_tokens) : end, 0});
    }
    if (!lanes_.empty()) return absl::OkStatus();
    return absl::ResourceExhaustedError(absl::StrCat("no KV cache is free for a sequence of ",
                                                     sequences_[first].ids.size(),
                                                     " tokens; score when fewer groups run"));
  }

  // Single tokens first, then chunks of prompts, as the scheduler plans a step; of the lanes that
  // stand at the same weights as the first unfinished one. Empty at the end.
  Step Next() {
    Step step;
    for (Lane& lane : lanes_) {
      if (lane.next >= lane.first_single && lane.next < lane.end && Joins(lane, step))
        Compute(lane, 1, step);
    }
    for (Lane& lane : lanes_) {
      const int64_t room = StepTokens() - static_cast<int64_t>(step.inputs.size());
      if (lane.next < lane.first_single && room > 0 && Joins(lane, step)) {
        Compute(lane, std::min({room, lane.first_single - lane.next, SegmentEnd(lane) - lane.next}),
                step);
      }
    }
    return step;
  }

  int64_t size() const { return static_cast<int64_t>(lanes_.size()); }

 private:
  int64_t StepTokens() const { return std::min(kStepTokens, context_.max_step_tokens); }

  int64_t SegmentEnd(const Lane& lane) const {
    const std::vector<ScoreSegment>& segments = sequences_[lane.sequence].segments;
    return lane.segment < segments.size() ? segments[lane.segment].end : lane.end;
  }

  // A step is computed under one set of weights: that of its first lane.
  bool Joins(Lane& lane, Step& step) const {
    const std::vector<ScoreSegment>& segments = sequences_[lane.sequence].segments;
    while (lane.segment < segments.size() && lane.next >= segments[lane.segment].end)
      ++lane.segment;
    const StagedWeights* const weights =
        lane.segment < segments.size() ? segments[lane.segment].weights : context_.weights;
    if (step.weights == nullptr) step.weights = weights;
    return step.weights == weights;
  }

  void Compute(Lane& lane, int64_t count, Step& step) {
    for (const int64_t end = lane.next + count; lane.next < end; ++lane.next) {
      const ScoreSequence& sequence = sequences_[lane.sequence];
      if (lane.next + 1 >= sequence.num_prompt_tokens) {
        step.rows.push_back(static_cast<int64_t>(step.inputs.size()));
        step.predictions.push_back({lane.sequence, lane.next});
      }
      step.inputs.push_back(
          {sequence.ids[lane.next], static_cast<int32_t>(lane.next), &lane.blocks});
    }
  }

  const ScoreContext& context_;
  const std::vector<ScoreSequence>& sequences_;
  const ScoreOptions& options_;
  std::vector<Lane> lanes_;  // not moved once filled: steps point into it
};

void Write(const ScoredToken& token, int64_t t, SequenceScore& score) {
  score.logprobs[t] = token.logprob;
  score.raw_logprobs[t] = token.raw_logprob;
  score.entropies[t] = token.entropy;
  score.logprob_second_moments[t] = token.logprob_second_moment;
  score.squared_probs[t] = token.squared_probs;
  score.kept_mass[t] = token.kept_mass;
  score.margins[t] = token.margin;
  score.ranks[t] = token.rank;
  score.gaps[t] = token.gap;
  score.mass_above[t] = token.mass_above;
}

absl::Status Run(const ScoreContext& context, const std::vector<ScoreSequence>& sequences,
                 const ScoreOptions& options, const Step& step, std::vector<SequenceScore>& out) {
  std::vector<int32_t> ids;
  for (const Prediction& p : step.predictions)
    ids.push_back(sequences[p.sequence].ids[p.position + 1]);
  std::vector<absl::StatusOr<ScoredToken>> tokens(step.rows.size());
  TANDEM_RETURN_IF_ERROR(
      context.runner->RunAndScore(*step.weights, step.inputs, step.rows, ids, options, tokens));
  for (size_t i = 0; i < tokens.size(); ++i) {
    const auto& [s, position] = step.predictions[i];
    if (!tokens[i].ok()) {
      return absl::InternalError(absl::StrCat("sequence ", s, ", token ", position + 1, ": ",
                                              tokens[i].status().message()));
    }
    Write(*tokens[i], position + 1, out[s]);
  }
  return absl::OkStatus();
}

SequenceScore Empty(size_t size) {
  const std::vector<float> zeros(size, 0.0f);
  return {zeros, zeros, zeros, zeros, zeros, zeros, zeros, std::vector<int32_t>(size, 0),
          zeros, zeros};
}

}  // namespace

absl::Status CheckSequences(const std::vector<ScoreSequence>& sequences, const ModelConfig& config,
                            const TokenRunner& runner) {
  for (size_t s = 0; s < sequences.size(); ++s) {
    const int64_t size = static_cast<int64_t>(sequences[s].ids.size());
    if (size < 2 || size > config.max_position_embeddings) {
      return absl::InvalidArgumentError(absl::StrCat(
          "sequence ", s, " has ", size, " tokens, want 2 to ", config.max_position_embeddings));
    }
    const int64_t prompt = sequences[s].num_prompt_tokens;
    if (prompt < 0 || prompt >= size) {
      return absl::InvalidArgumentError(absl::StrCat("sequence ", s, " of ", size,
                                                     " tokens has num_prompt_tokens ", prompt,
                                                     ", want 0 to ", size - 1));
    }
    for (size_t i = 0; i < sequences[s].segments.size(); ++i) {
      const auto& segments = sequences[s].segments;
      const bool staged = runner.Packed(segments[i].weights);
      if (staged && segments[i].end > (i == 0 ? 0 : segments[i - 1].end)) continue;
      return absl::InvalidArgumentError(
          absl::StrCat("sequence ", s, ", segment ", i,
                       ": want weights staged by this engine and an end after the one before"));
    }
    for (const int32_t id : sequences[s].ids) {
      if (id >= 0 && id < config.vocab_size) continue;
      return absl::InvalidArgumentError(
          absl::StrCat("sequence ", s, " has id ", id, ", want 0 to ", config.vocab_size - 1));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<SequenceScore>> ScoreSequences(
    const ScoreContext& context, const std::vector<ScoreSequence>& sequences,
    const ScoreOptions& options) {
  std::vector<SequenceScore> out;
  for (const ScoreSequence& sequence : sequences) out.push_back(Empty(sequence.ids.size()));
  for (size_t first = 0; first < sequences.size();) {
    Batch batch(context, sequences, options);
    TANDEM_RETURN_IF_ERROR(batch.Fill(first));
    for (Step step = batch.Next(); !step.inputs.empty(); step = batch.Next()) {
      TANDEM_RETURN_IF_ERROR(Run(context, sequences, options, step, out));
    }
    first += static_cast<size_t>(batch.size());
  }
  return out;
}

}  // namespace tandem::rollout
