// PackedRow: several groups in one row of tokens, each group's prompt once. Plain arrays; free of
// LibTorch and protobuf.
//
// Index convention: element t of every per-token array is about token t given tokens before t. The
// prediction of the first token of a completion comes from the prompt's last position, of any other
// from its own predecessor: `source[t]`. That is the only place where logits and tokens are
// shifted.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "common/model/token_support.h"

namespace tandem::trainer {

// Tokens [begin, end) of the row attend to [prefix_begin, prefix_end) and, causally, to themselves.
// A prompt's segment has an empty prefix; a completion's prefix is its prompt.
struct Segment {
  int64_t begin = 0, end = 0;
  int64_t prefix_begin = 0, prefix_end = 0;
};

struct PackedRow {
  std::vector<int32_t> token_ids;  // [T]
  std::vector<int32_t> positions;  // [T] from 0 at each prompt's start; completions go on from it
  std::vector<int64_t> source;     // [T] row whose logits predict token t; -1: none (prompt start)
  std::vector<bool> is_target;     // [T] log-probs are wanted here (completion tokens)
  // [T] the rising ids token t was drawn from when the sampler's filters left out others; an empty
  // one: all. No elements at all: no filters. They lie where GroupTokens::support said, packed
  // where a server packed them: as plain ids those of a whole batch may take hundreds of gigabytes.
  std::vector<SupportView> support;
  std::vector<Segment> segments;  // prompt first, then its completions; in order of `begin`
  // Where completion i of the packed ones lies: index into `segments`.
  std::vector<int64_t> completion_segments;

  int64_t num_tokens() const { return static_cast<int64_t>(token_ids.size()); }
};

struct GroupTokens {
  std::span<const int32_t> prompt;                    // [P], P >= 1
  std::vector<std::span<const int32_t>> completions;  // each [T_i], T_i >= 1
  // Per completion [T_i] as PackedRow::support, or none; empty when no completion has any.
  std::vector<std::vector<SupportView>> support;
};

// Packs whole groups in order; completion_segments counts completions over the groups in order.
//   INVALID_ARGUMENT  an empty prompt or completion; a support that is not as long as its
//   completion
absl::StatusOr<PackedRow> PackRow(std::span<const GroupTokens> groups);

// One sequence as a row of its own in which every token but the first is a target (for scoring).
PackedRow SingleSequenceRow(std::span<const int32_t> token_ids);

// The row's segments by prompt: each part starts with a segment without prefix, and the prefix of
// every other segment of the part is that first segment.
std::vector<std::span<const Segment>> SplitByPrompt(std::span<const Segment> segments);

}  // namespace tandem::trainer
