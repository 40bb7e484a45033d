// ExperienceBatch: scored groups as packed rows (stage 4). The last place that sees protobuf; plain
// arrays from here to the tensors of train_step.cc.
//
// The one index convention of the project: element t of every per-token array is about token t
// given the tokens before t. loss_mask is false on prompts and on tokens that were given between two
// turns, so loss_mask[0] is false; the end token
// that a completion drew is trained like any other. The shift between logits and tokens happens in
// one place, PackedRow::source.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "trainer/experience/packed_rows.h"

namespace tandem::experience::v1 {
class ScoredGroup;
}

namespace tandem::trainer {

// Where a completion came from, where it is, and what it was worth.
struct CompletionOrigin {
  int64_t group = 0;       // position in the span that was packed
  int64_t completion = 0;  // position in its group
  double reward = 0;
  bool truncated = false;      // ended by length: what would have come is unknown
  int64_t microbatch = 0;      // whose row has it
  int64_t begin = 0, end = 0;  // tokens of that row, given ones included
};

// One row that is scored and differentiated at once. Per-token arrays run in parallel with the row,
// [T].
struct Microbatch {
  PackedRow row;
  std::vector<uint8_t> loss_mask;
  std::vector<float> behaviour_logprobs;
  std::vector<double> rewards;  // that come with the token; mostly the whole one with the last
  std::vector<float> advantages;
  std::vector<float> entropies;               // of the sampling distribution; NaN: not known
  std::vector<float> logprob_second_moments;  // of the sampling distribution; NaN: not known
  std::vector<int64_t> weight_versions;       // that drew the token; 0 on prompts and given tokens
  std::vector<int32_t> turns;                 // that drew the token, from 1; 0 likewise
  std::vector<int32_t> completion;  // number in ExperienceBatch::completions; -1 on prompts
  int64_t num_completions = 0;
  int64_t num_trained_tokens = 0;  // sum of loss_mask
};

// The microbatches between two optimizer updates: [begin, end).
struct Minibatch {
  int64_t begin = 0, end = 0;
};

struct ExperienceBatch {
  std::vector<Microbatch> microbatches;
  std::vector<Minibatch> minibatches;         // in order, covering all microbatches
  std::vector<CompletionOrigin> completions;  // trained ones, in packing order
  int64_t num_trained_tokens = 0;
};

struct PackOptions {
  int64_t microbatch_tokens = 2048;  // a row holds at most this, or one completion with its prompt
  int64_t num_minibatches = 1;       // at most one per group is made
  int64_t vocab_size = 0;
  // Each minibatch is cut into rows of about a num_ranks-th of its tokens where they are smaller
  // than microbatch_tokens, so that every rank has work; no group is split for it.
  int num_ranks = 1;
  // A group is never split, and a row holds one group even where it is larger than
  // microbatch_tokens: losses of pairs need both completions.
  bool whole_groups = false;
};

// Packs groups in order; a group stands in one row where it fits, else its completions spread over
// rows that repeat its prompt. Masked completions are left out. Equal groups give equal batches.
// Supports (PackedRow) stay in `groups`, which must outlive the batch when there are any.
//   INVALID_ARGUMENT  (naming group and completion) empty prompt or completion; per-token arrays
//                     (entropies and second moments may be absent), segments or version spans that do not add up, or versions that fall; a reward on a given token; ids that do not have
//                     the hash they were sent with, or outside the vocabulary; a reward of a
//                     completion to train, or an advantage, that is not finite; the same index twice
//   FAILED_PRECONDITION  no token to train
absl::StatusOr<ExperienceBatch> PackBatch(std::span<const experience::v1::ScoredGroup> groups,
                                          const PackOptions& options);

// Which rank computes each microbatch, [microbatches]: within every minibatch the longest first,
// each to the rank with the fewest tokens so far (Graham's rule: at most 4/3 of the best balance
// there is).
std::vector<int> AssignRanks(const ExperienceBatch& batch, int num_ranks);

}  // namespace tandem::trainer
