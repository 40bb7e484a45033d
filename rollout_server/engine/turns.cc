#include "rollout_server/engine/turns.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <span>
#include <vector>

#include "common/base/status_macros.h"

namespace tandem::rollout {
namespace {

int32_t NumTurns(const FinishedCompletion& completion) {
  return static_cast<int32_t>(std::ranges::count(completion.segments, false, &Segment::given));
}

// How many ids may be given, so that one more can be sampled.
int32_t NumTokensLeft(const Sequence& sequence) {
  return sequence.group->request.max_completion_tokens() - sequence.completion.num_tokens() - 1;
}

// The ids that were given after turn `turn`; none: it has not been answered.
std::span<const int32_t> GivenAfter(const FinishedCompletion& completion, int32_t turn) {
  size_t begin = 0;
  int32_t passed = 0;
  for (const Segment& segment : completion.segments) {
    const auto size = static_cast<size_t>(segment.num_tokens);
    if (segment.given && passed == turn) {
      return std::span(completion.token_ids).subspan(begin, size);
    }
    passed += !segment.given;
    begin += size;
  }
  return {};
}

absl::Status CheckGivenIds(const Sequence& sequence, const TurnAnswer& answer, int64_t vocab_size) {
  if (answer.token_ids.empty()) {
    return InvalidArgument("token_ids is empty: give at least one id, or set finish");
  }
  for (size_t i = 0; i < answer.token_ids.size(); ++i) {
    const int32_t id = answer.token_ids[i];
    if (id >= 0 && id < vocab_size) continue;
    return InvalidArgument("token_ids[", i, "] is ", id, ", want 0 to ", vocab_size - 1);
  }
  const int32_t left = NumTokensLeft(sequence);
  if (std::ssize(answer.token_ids) <= left) return absl::OkStatus();
  return InvalidArgument(answer.token_ids.size(), " token_ids after the ",
                         sequence.completion.num_tokens(), " tokens of completion ", answer.index,
                         ", at most ", left, " leave one to sample (turns.max_completion_tokens = ",
                         sequence.group->request.max_completion_tokens(),
                         "): give fewer, or set finish");
}

}  // namespace

absl::Status ValidateTurns(const TurnLimits& turns) {
  if (turns.max_turns < 1) {
    return InvalidArgument("turns.max_turns is ", turns.max_turns, ", want >= 1");
  }
  if (turns.max_completion_tokens < 1) {
    return InvalidArgument("turns.max_completion_tokens is ", turns.max_completion_tokens,
                           ", want >= 1");
  }
  return absl::OkStatus();
}

void CloseTurn(Sequence& sequence) {
  if (!sequence.group->request.turns.has_value()) return;
  FinishedCompletion& completion = sequence.completion;
  completion.charge.Add(static_cast<int64_t>(completion.text.size()));
  completion.segments.push_back(
      {.given = false, .num_tokens = sequence.turn_size(), .text = completion.text});
}

bool GoesOn(const Sequence& sequence) {
  const std::optional<TurnLimits>& turns = sequence.group->request.turns;
  if (!turns.has_value()) return false;
  const FinishReason reason = sequence.completion.finish_reason;
  return (reason == FinishReason::kStop || reason == FinishReason::kStopString) &&
         NumTurns(sequence.completion) < turns->max_turns && NumTokensLeft(sequence) >= 1;
}

FinishedTurn MakeFinishedTurn(const Sequence& sequence) {
  const FinishedCompletion& completion = sequence.completion;
  FinishedTurn turn;
  turn.index = completion.index;
  turn.turn = NumTurns(completion);
  turn.token_ids.assign(completion.token_ids.begin() + sequence.turn_begin,
                        completion.token_ids.end());
  turn.finish_reason = completion.finish_reason;
  turn.text = completion.text;
  turn.num_tokens_left = NumTokensLeft(sequence);
  turn.charge = ByteCharge(completion.charge.meter(),
                           static_cast<int64_t>(sizeof(FinishedTurn) + turn.text.size() +
                                                turn.token_ids.size() * sizeof(int32_t)));
  return turn;
}

absl::StatusOr<bool> CheckAnswer(const Sequence& sequence, const TurnAnswer& answer,
                                 int64_t vocab_size) {
  if (answer.finish && !answer.token_ids.empty()) {
    return InvalidArgument("finish with ", answer.token_ids.size(),
                           " token_ids: a completion ends with what the model sampled");
  }
  if (sequence.finished) {
    if (answer.finish) return false;
    return NotFound("completion ", answer.index, " has ended");
  }
  const FinishedCompletion& completion = sequence.completion;
  const int32_t num_turns = NumTurns(completion);
  if (answer.turn < 1 || answer.turn > num_turns) {
    return FailedPrecondition("turn ", answer.turn, " of completion ", answer.index,
                              " has not ended: ", num_turns, " have");
  }
  if (answer.turn == num_turns && sequence.waits) {
    if (!answer.finish) TANDEM_RETURN_IF_ERROR(CheckGivenIds(sequence, answer, vocab_size));
    return true;
  }
  if (!std::ranges::equal(GivenAfter(completion, answer.turn), answer.token_ids)) {
    return FailedPrecondition("turn ", answer.turn, " of completion ", answer.index,
                              " was answered with other token_ids before");
  }
  return false;
}

void AppendGiven(Sequence& sequence, const std::vector<int32_t>& token_ids, double now) {
  constexpr float kNotSampled = std::numeric_limits<float>::quiet_NaN();
  FinishedCompletion& c = sequence.completion;
  const SamplingParams& sampling = sequence.sampling();
  for (const int32_t id : token_ids) {
    c.token_ids.push_back(id);
    for (std::vector<float>* const numbers : {&c.behaviour_logprobs, &c.raw_logprobs, &c.entropies,
                                              &c.logprob_second_moments, &c.kept_mass}) {
      numbers->push_back(kNotSampled);
    }
    c.decode_batch_sizes.push_back(0);
    c.prefix_cached.push_back(sequence.found_prefix);
    if (sampling.return_support) c.support.emplace_back();
    if (sampling.top_logprobs > 0) c.top.emplace_back();
    c.charge.Add(LastTokenBytes(c));
  }
  const auto num_given = static_cast<int32_t>(token_ids.size());
  c.segments.push_back({.given = true, .num_tokens = num_given, .text = ""});
  c.num_given += num_given;
  c.wait_seconds += now - sequence.last_token_at;
  c.text.clear();
  sequence.last_token_at = now;
  sequence.turn_begin = c.num_tokens();
}

void DropGiven(Sequence& sequence) {
  FinishedCompletion& c = sequence.completion;
  const int32_t num_given = c.segments.back().num_tokens;
  const auto size = static_cast<size_t>(c.num_tokens() - num_given);
  const auto cut = [size](auto& column) {
    if (column.size() > size) column.resize(size);
  };
  cut(c.token_ids);
  for (std::vector<float>* const numbers : {&c.behaviour_logprobs, &c.raw_logprobs, &c.entropies,
                                            &c.logprob_second_moments, &c.kept_mass}) {
    cut(*numbers);
  }
  cut(c.decode_batch_sizes);
  cut(c.prefix_cached);
  cut(c.support);
  cut(c.top);
  c.segments.pop_back();
  c.num_given -= num_given;
  sequence.turn_begin = c.num_tokens();
}

}  // namespace tandem::rollout
