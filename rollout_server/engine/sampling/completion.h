// A completion as it grows: AppendToken adds a sampled token, CompletionText decodes its ids.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "absl/status/statusor.h"
#include "common/base/weight_version.h"
#include "common/tokenizer/tokenizer.h"
#include "rollout_server/engine/sampling/sampler.h"
#include "rollout_server/engine/schedule/sequence.h"

namespace tandem::rollout {

// Appends a token and its record to the sequence's completion. `version`: of the weights that
// sampled it. `batch_size`: rows sampled in the step. `now`: monotonic seconds, the same for all
// tokens of a step.
void AppendToken(Sequence& sequence, SampledToken token, WeightVersion version, int32_t batch_size,
                 double now);

// The tokens that were appended since the last call, for a caller that wants them as they are drawn.
// None after the last token was taken.
DrawnTokens TakeDrawn(Sequence& sequence);

// Ids as text, special tokens shown unless `skip_special_tokens`. Ids past the tokenizer's vocabulary (padding rows of the
// embedding, as in Qwen2) can be sampled; they have no text. Thread-safe.
absl::StatusOr<std::string> CompletionText(const Tokenizer& tokenizer,
                                           std::span<const int32_t> token_ids,
                                           bool skip_special_tokens = false);

}  // namespace tandem::rollout
