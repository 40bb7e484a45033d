#include "rollout_server/engine/sampling/completion.h"

#include <algorithm>
#include <utility>
#include <vector>

namespace tandem::rollout {

void AppendToken(Sequence& sequence, SampledToken token, WeightVersion version, int32_t batch_size,
                 double now) {
  FinishedCompletion& c = sequence.completion;
  if (!c.token_ids.empty()) {
    const double gap = now - sequence.last_token_at;
    c.decode_seconds += gap;
    c.longest_gap_seconds = std::max(c.longest_gap_seconds, gap);
  }
  sequence.last_token_at = now;
  c.token_ids.push_back(token.id);
  c.behaviour_logprobs.push_back(token.behaviour_logprob);
  c.raw_logprobs.push_back(token.raw_logprob);
  c.entropies.push_back(token.entropy);
  c.logprob_second_moments.push_back(token.logprob_second_moment);
  c.decode_batch_sizes.push_back(batch_size);
  c.prefix_cached.push_back(sequence.found_prefix);
  c.kept_mass.push_back(token.kept_mass);
  const SamplingParams& sampling = sequence.sampling();
  if (sampling.return_support) c.support.emplace_back(token.support);
  if (sampling.top_logprobs > 0) c.top.push_back(std::move(token.top));
  c.charge.Add(LastTokenBytes(c));
  if (c.version_spans.empty() || c.version_spans.back().version != version) {
    c.version_spans.push_back({version, 0});
  }
  ++c.version_spans.back().num_tokens;
}

DrawnTokens TakeDrawn(Sequence& sequence) {
  const FinishedCompletion& c = sequence.completion;
  const auto begin = static_cast<size_t>(std::exchange(sequence.num_streamed, c.num_tokens()));
  DrawnTokens drawn = {.index = c.index, .charge = ByteCharge(c.charge.meter(), sizeof(drawn))};
  for (size_t t = begin; t < c.token_ids.size(); ++t) {
    drawn.tokens.push_back({c.token_ids[t], c.behaviour_logprobs[t], c.raw_logprobs[t], {}});
    DrawnToken& token = drawn.tokens.back();
    if (!c.top.empty()) token.top = c.top[t];
    drawn.charge.Add(static_cast<int64_t>(sizeof(token) + token.top.size() * sizeof(TopLogprob)));
  }
  return drawn;
}

absl::StatusOr<std::string> CompletionText(const Tokenizer& tokenizer,
                                           std::span<const int32_t> token_ids,
                                           bool skip_special_tokens) {
  std::vector<int32_t> known;
  known.reserve(token_ids.size());
  for (int32_t id : token_ids) {
    if (id < tokenizer.vocab_size()) known.push_back(id);
  }
  return tokenizer.Decode(known, skip_special_tokens);
}

}  // namespace tandem::rollout
