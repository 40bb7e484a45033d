#include "rollout_server/engine/scorer.h"

#include <algorithm>
#include <deque>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/rpc/refusal.h"
#include "rollout_server/engine/sampling/sampler.h"

namespace tandem::rollout {
namespace {

constexpr int64_t kStepTokens = 256;  // of prompts, computed together
// A run gives up after groups took back all its KV this often without a sequence done in between.
constexpr int kMostRecalls = 8;

// A sequence that is being computed. Its last id is never computed, since no token follows it.
struct Lane {
  size_t sequence = 0;
  std::shared_ptr<const KvLoan> loan;
  int64_t end = 0;           // positions [0, end) are computed
  int64_t first_single = 0;  // from this position on, one position a step
  int64_t next = 0;          // position
  size_t segment = 0;        // that `next` lies in
};

// A position whose logits are needed: they predict token `position + 1` of `sequence`.
struct Prediction {
  size_t sequence = 0;
  int64_t position = 0;
};

struct Slice {
  const StagedWeights* weights = nullptr;
  std::vector<TokenInput> inputs;
  std::vector<int64_t> rows;
  std::vector<int32_t> ids;             // the predicted token of each row
  std::vector<Prediction> predictions;  // one for each row
};

void Write(ScoredToken token, int64_t t, SequenceScore& score) {
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
  if (!score.top.empty()) score.top[t] = std::move(token.top);
}

SequenceScore Empty(size_t size, bool with_top) {
  const std::vector<float> zeros(size, 0.0f);
  SequenceScore score = {
      zeros, zeros, zeros, zeros, zeros, zeros, zeros, std::vector<int32_t>(size, 0), zeros, zeros};
  if (with_top) score.top.resize(size);
  return score;
}

// The sequences that are computed together are lanes. When the last of them is done, the next ones
// begin.
class SlicedScore : public ScoreRun {
 public:
  SlicedScore(const ScoreContext& context, std::vector<ScoreSequence> sequences,
              const ScoreOptions& options)
      : context_(context),
        sequences_(std::move(sequences)),
        options_(options),
        began_under_(*context.live) {
    for (size_t s = 0; s < sequences_.size(); ++s) {
      waiting_.push_back(s);
      scores_.push_back(Empty(sequences_[s].ids.size(), options.top_logprobs > 0));
    }
  }
  ~SlicedScore() override {
    for (const Lane& lane : lanes_) context_.scheduler->GiveBack(lane.loan);
  }
  SlicedScore(const SlicedScore&) = delete;
  SlicedScore& operator=(const SlicedScore&) = delete;

  absl::StatusOr<ScoreProgress> Step() override {
    TANDEM_RETURN_IF_ERROR(CheckWeights());
    TANDEM_RETURN_IF_ERROR(TakeBackRecalled());
    if (lanes_.empty()) {
      if (waiting_.empty()) return ScoreProgress::kDone;
      TANDEM_RETURN_IF_ERROR(CheckFits(waiting_.front()));
      Fill();
      if (lanes_.empty() && context_.scheduler->has_lent()) return ScoreProgress::kWaits;
      if (lanes_.empty()) return NoFreeKv(waiting_.front());
    }
    TANDEM_RETURN_IF_ERROR(Compute(Next()));
    std::erase_if(lanes_, [this](const Lane& lane) {
      if (lane.next < lane.end) return false;
      context_.scheduler->GiveBack(lane.loan);
      num_recalls_ = 0;
      return true;
    });
    return lanes_.empty() && waiting_.empty() ? ScoreProgress::kDone : ScoreProgress::kMore;
  }

  std::vector<SequenceScore> Take() override { return std::move(scores_); }

 private:
  int64_t SliceTokens() const { return std::min(kStepTokens, context_.max_step_tokens); }

  // The weights that the run began under may be overwritten after an install.
  absl::Status CheckWeights() const {
    if (context_.live->num_installs == began_under_.num_installs) return absl::OkStatus();
    return Aborted("version ", context_.live->version.value,
                   " of the weights was installed while version ", began_under_.version.value,
                   " was scored with: ask again");
  }

  absl::Status NoFreeKv(size_t sequence) const {
    return rpc::Refused(
        rpc::Refusal::kMemoryFull,
        ResourceExhausted("no KV cache is free for a sequence of ", sequences_[sequence].ids.size(),
                          " tokens; score when fewer groups run"));
  }

  // Would the sequence fit an empty cache?
  absl::Status CheckFits(size_t sequence) const {
    const int64_t size = std::ssize(sequences_[sequence].ids);
    const int64_t room = context_.scheduler->blocks().num_blocks() * KvBlockPool::kBlockTokens;
    if (KvBlockPool::BlocksFor(size - 1) * KvBlockPool::kBlockTokens <= room) {
      return absl::OkStatus();
    }
    return rpc::Refused(
        rpc::Refusal::kTooLarge,
        ResourceExhausted("a sequence of ", size, " tokens needs more KV cache than the ", room,
                          " tokens there are: raise engine.kv_capacity_tokens"));
  }

  // A lane whose blocks were recalled begins again later, from its first token.
  absl::Status TakeBackRecalled() {
    for (auto lane = lanes_.rbegin(); lane != lanes_.rend(); ++lane) {
      if (lane->loan->recalled) waiting_.push_front(lane->sequence);
    }
    const bool recalled = std::erase_if(lanes_, [](const Lane& l) { return l.loan->recalled; }) > 0;
    if (!recalled || !lanes_.empty() || ++num_recalls_ <= kMostRecalls) return absl::OkStatus();
    return NoFreeKv(waiting_.front());
  }

  // Starts lanes for waiting sequences: one when `alone`; for decode as many as blocks and
  // max_sequences allow; for prefill as many as fill one step, to borrow no more blocks than
  // needed.
  void Fill() {
    const bool decode = options_.path == ScorePath::kDecode;
    const int64_t most = options_.alone ? 1 : context_.max_sequences;
    int64_t tokens = 0;
    while (!waiting_.empty() && static_cast<int64_t>(lanes_.size()) < most) {
      const ScoreSequence& sequence = sequences_[waiting_.front()];
      const int64_t end = static_cast<int64_t>(sequence.ids.size()) - 1;
      tokens += end;
      if (!decode && !lanes_.empty() && tokens > SliceTokens()) break;
      auto loan = context_.scheduler->Borrow(KvBlockPool::BlocksFor(end));
      if (loan == nullptr) break;
      lanes_.push_back({waiting_.front(), std::move(loan), end,
                        decode ? std::min(end, sequence.num_prompt_tokens) : end});
      waiting_.pop_front();
    }
  }

  // The next slice: single tokens first, then chunks of prompts, as the scheduler plans a step, of
  // those lanes that are at the same weights as the first one.
  Slice Next() {
    Slice slice;
    for (Lane& lane : lanes_) {
      if (lane.next >= lane.first_single && Joins(lane, slice)) Add(lane, 1, slice);
    }
    for (Lane& lane : lanes_) {
      const int64_t room = SliceTokens() - static_cast<int64_t>(slice.inputs.size());
      if (lane.next < lane.first_single && room > 0 && Joins(lane, slice)) {
        Add(lane, std::min({room, lane.first_single - lane.next, SegmentEnd(lane) - lane.next}),
            slice);
      }
    }
    return slice;
  }

  int64_t SegmentEnd(const Lane& lane) const {
    const std::vector<ScoreSegment>& segments = sequences_[lane.sequence].segments;
    return lane.segment < segments.size() ? segments[lane.segment].end : lane.end;
  }

  // Does the lane's next position use the slice's weights, which are those of its first lane?
  bool Joins(Lane& lane, Slice& slice) const {
    const std::vector<ScoreSegment>& segments = sequences_[lane.sequence].segments;
    while (lane.segment < segments.size() && lane.next >= segments[lane.segment].end)
      ++lane.segment;
    const StagedWeights* const weights =
        lane.segment < segments.size() ? segments[lane.segment].weights : context_.weights;
    if (slice.weights == nullptr) slice.weights = weights;
    return slice.weights == weights;
  }

  void Add(Lane& lane, int64_t count, Slice& slice) {
    for (const int64_t end = lane.next + count; lane.next < end; ++lane.next) {
      const ScoreSequence& sequence = sequences_[lane.sequence];
      if (lane.next + 1 >= sequence.num_prompt_tokens) {
        slice.rows.push_back(static_cast<int64_t>(slice.inputs.size()));
        slice.ids.push_back(sequence.ids[lane.next + 1]);
        slice.predictions.push_back({lane.sequence, lane.next});
      }
      slice.inputs.push_back({sequence.ids[lane.next], static_cast<int32_t>(lane.next),
                              &lane.loan->blocks, context_.adapter});
    }
  }

  absl::Status Compute(const Slice& slice) {
    std::vector<absl::StatusOr<ScoredToken>> tokens(slice.rows.size());
    TANDEM_RETURN_IF_ERROR(context_.runner->RunAndScore(*slice.weights, slice.inputs, slice.rows,
                                                        slice.ids, options_, tokens));
    for (size_t i = 0; i < tokens.size(); ++i) {
      const auto& [s, position] = slice.predictions[i];
      if (!tokens[i].ok()) {
        return absl::Status(tokens[i].status().code(),
                            absl::StrCat("sequence ", s, ", token ", position + 1, ": ",
                                         tokens[i].status().message()));
      }
      Write(*std::move(tokens[i]), position + 1, scores_[s]);
    }
    return absl::OkStatus();
  }

  const ScoreContext context_;
  const std::vector<ScoreSequence> sequences_;
  const ScoreOptions options_;
  const LiveWeights began_under_;
  std::deque<size_t> waiting_;  // indices of sequences
  std::vector<Lane> lanes_;
  std::vector<SequenceScore> scores_;
  int num_recalls_ = 0;  // of all lanes, since one was last done
};

}  // namespace

absl::Status CheckSequences(const std::vector<ScoreSequence>& sequences, const ModelConfig& config,
                            const TokenRunner& runner) {
  for (size_t s = 0; s < sequences.size(); ++s) {
    const int64_t size = static_cast<int64_t>(sequences[s].ids.size());
    if (size < 2 || size > config.max_position_embeddings) {
      return InvalidArgument("sequence ", s, " has ", size, " tokens, want 2 to ",
                             config.max_position_embeddings);
    }
    const int64_t prompt = sequences[s].num_prompt_tokens;
    if (prompt < 0 || prompt >= size) {
      return InvalidArgument("sequence ", s, " of ", size, " tokens has num_prompt_tokens ", prompt,
                             ", want 0 to ", size - 1);
    }
    for (size_t i = 0; i < sequences[s].segments.size(); ++i) {
      const auto& segments = sequences[s].segments;
      const bool staged = runner.Packed(segments[i].weights);
      if (staged && segments[i].end > (i == 0 ? 0 : segments[i - 1].end)) continue;
      return InvalidArgument(
          "sequence ", s, ", segment ", i,
          ": want weights staged by this engine and an end after the one before");
    }
    for (const int32_t id : sequences[s].ids) {
      if (id >= 0 && id < config.vocab_size) continue;
      return InvalidArgument("sequence ", s, " has id ", id, ", want 0 to ", config.vocab_size - 1);
    }
  }
  return absl::OkStatus();
}

std::unique_ptr<ScoreRun> MakeScoreRun(const ScoreContext& context,
                                       std::vector<ScoreSequence> sequences,
                                       const ScoreOptions& options) {
  return std::make_unique<SlicedScore>(context, std::move(sequences), options);
}

}  // namespace tandem::rollout
