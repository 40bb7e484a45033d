// GroupRequest, FinishedCompletion, EngineEvent: what the engine takes and what its
// steps give back, as plain structs (protobuf stays in the services, LibTorch in the runner).
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "common/base/weight_version.h"
#include "common/model/token_support.h"
#include "rollout_server/engine/sampling/sampling_params.h"
#include "rollout_server/engine/schedule/byte_meter.h"
#include "rollout_server/engine/schedule/turn.h"

namespace tandem::rollout {

struct AdapterWeights;  // forward/adapter_weights.h

// Identifies a group at this server: the engine's own number, not the caller's group_id.
using GroupKey = int64_t;

struct GroupRequest {
  GroupKey key = 0;
  std::vector<int32_t> prompt;  // [P], P >= 1
  int32_t num_completions = 1;  // a greedy baseline counts
  int32_t first_index = 0;      // of the completions; a draw depends on its completion's index
  int32_t priority = 0;         // higher ones are admitted first; equal ones in order of arrival
  SamplingParams sampling;
  std::optional<SamplingParams> baseline =
      {};                                // of the last completion, if it is a greedy baseline
  std::optional<TurnLimits> turns = {};  // none: of one turn
  // Tokens of a completion that are told in one event while it is drawn; its first token is told at
  // once. 0: no such events. For groups of one turn.
  int32_t stream_interval = 0;
  std::string adapter = {};  // one of EngineOptions::lora_modules; empty: what is served
  // The adapter of that name, from Engine::Add on.
  std::shared_ptr<const AdapterWeights> adapter_weights = nullptr;
  uint64_t adapter_id = 0;
  uint64_t kv_salt = 0;  // KV is shared among groups of one salt; 0, or with the highest bit set
  ByteCharge charge;     // for this request; its completions charge the same meter

  // The most tokens of a completion.
  int32_t max_completion_tokens() const {
    return turns.has_value() ? turns->max_completion_tokens : sampling.max_new_tokens;
  }

  // How the completion with this index is sampled.
  const SamplingParams& SamplingOf(int32_t index) const {
    return baseline.has_value() && index == first_index + num_completions - 1 ? *baseline
                                                                              : sampling;
  }
};

enum class FinishReason { kStop, kLength, kStopString, kStoppedEarly };

// KV that was found in the prefix index. The two fields are the number of weight installs at this
// engine when the KV was computed and when it was found. They differ if and only if the KV is of
// other weights; the history has both, so that a program without the index can check it
// (docs/run_directory.md).
struct FoundKv {
  uint64_t of_install = 0, at_install = 0;
  uint64_t age() const { return at_install - of_install; }
};

// Per-token arrays run in parallel, [T], stop token included. On given tokens numbers are NaN or 0.
struct FinishedCompletion {
  int32_t index = 0;
  std::vector<int32_t> token_ids;
  std::vector<float> behaviour_logprobs;
  std::vector<float> raw_logprobs;
  std::vector<float> entropies;
  std::vector<float> logprob_second_moments;
  std::vector<int32_t> decode_batch_sizes;
  std::vector<bool> prefix_cached;
  std::vector<float>
      kept_mass;  // retained probability mass: what filters leave of the tempered one
  std::vector<PackedSupport> support;        // empty unless return_support
  std::vector<std::vector<TopLogprob>> top;  // empty unless top_logprobs
  std::vector<VersionSpan> version_spans;    // of the sampled tokens
  // Those that have ended, in order, and the number of given tokens in them. A completion of one
  // turn has none.
  std::vector<Segment> segments;
  int32_t num_given = 0;
  std::optional<FoundKv> found_kv;  // the most outdated one; none: all its KV was computed for it
  double decode_seconds = 0;        // from the first token to the last, without wait_seconds
  double wait_seconds = 0;          // between turns, for the ids that were given
  double longest_gap_seconds = 0;   // between two of its tokens
  FinishReason finish_reason = FinishReason::kStop;
  std::string text;  // without the stop token, cut at a stop string
  // With the fault `retokenise` the sampled ids, which the hash is of; else empty, and the hash is
  // of token_ids.
  std::vector<int32_t> hashed_ids;
  ByteCharge charge;  // for the arrays above, grown by LastTokenBytes with each token

  int32_t num_tokens() const { return static_cast<int32_t>(token_ids.size()); }
  int32_t num_sampled() const { return num_tokens() - num_given; }
};

// A turn of a completion that now waits to be continued.
struct FinishedTurn {
  int32_t index = 0;  // of the completion
  int32_t turn = 0;   // from 1
  std::vector<int32_t> token_ids;
  FinishReason finish_reason = FinishReason::kStop;
  std::string text;             // without the stop token, cut at a stop string
  int32_t num_tokens_left = 0;  // that may be given, so that one more can be sampled
  ByteCharge charge;            // for this struct
};

// Tokens as they were drawn, of a group that asked for them (GroupRequest::stream_interval).
struct DrawnToken {
  int32_t id = 0;
  float behaviour_logprob = 0;
  float raw_logprob = 0;
  std::vector<TopLogprob> top;  // empty unless top_logprobs
};
struct DrawnTokens {
  int32_t index = 0;  // of their completion
  std::vector<DrawnToken> tokens;
  ByteCharge charge;  // for this struct
};

// Why one group failed, while the engine and the other groups go on.
enum class GroupFailure {
  kNonFiniteLogits,  // the model gave NaN or +inf, or -inf for every id
  kNothingToDraw,    // the model allows only ids that min_new_tokens forbids
  kText,             // its ids cannot be turned into text
};
inline constexpr size_t kNumGroupFailures = 3;
std::string_view GroupFailureName(GroupFailure cause);  // "non_finite_logits", ...

// What one step of the engine made, in order.
struct CompletionFinished {
  GroupKey key = 0;
  FinishedCompletion completion;
};
struct TokensDrawn {  // before the completion that they end
  GroupKey key = 0;
  DrawnTokens drawn;
};
struct TurnFinished {
  GroupKey key = 0;
  FinishedTurn turn;
};
struct GroupFinished {
  GroupKey key = 0;
  int32_t num_prompt_tokens_cached = 0;
  bool incomplete = false;  // StopEarly cut members short
};
struct GroupStarted {  // its prompt began to be computed
  GroupKey key = 0;
  double seconds_ago = 0;  // how long the step that admitted it took
};
struct GroupDecoding {  // its first tokens were sampled
  GroupKey key = 0;
};
struct GroupFailed {  // the last event of its group; no bit of the other groups changes
  GroupKey key = 0;
  GroupFailure cause = GroupFailure::kNonFiniteLogits;
  absl::Status status;  // DATA_LOSS: names the cause, the completion and the token
};
using EngineEvent = std::variant<GroupStarted, GroupDecoding, CompletionFinished, GroupFinished,
                                 GroupFailed, TurnFinished, TokensDrawn>;

// Bytes of the record of the last token in a completion.
int64_t LastTokenBytes(const FinishedCompletion& completion);

}  // namespace tandem::rollout
