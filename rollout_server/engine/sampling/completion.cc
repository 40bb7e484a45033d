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

DrawnToken LastDrawn(const Sequence& sequence) {
  const FinishedCompletion& c = sequence.completion;
  DrawnToken token = {.index = c.index,
                      .id = c.token_ids.back(),
                      .behaviour_logprob = c.behaviour_logprobs.back(),
                      .raw_logprob = c.raw_logprobs.back(),
                      .version = c.version_spans.back().version,
                      .charge = ByteCharge(c.charge.meter(), sizeof(DrawnToken))};
  if (!c.top.empty()) token.top = c.top.back();
  token.charge.Add(static_cast<int64_t>(token.top.size() * sizeof(TopLogprob)));
  return token;
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
