// PackedExamples: examples as packed rows, each example whole in one row, and where its tokens lie.
// Used by supervised_model.cc. Pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "trainer/experience/experience_batch.h"

namespace tandem::trainer {

// Tokens [begin, end) of a row.
struct TokenRange {
  int64_t begin = 0, end = 0;

  int64_t size() const { return end - begin; }
  friend bool operator==(const TokenRange&, const TokenRange&) = default;
};

struct PackedExample {
  int64_t example = 0;  // its number
  TokenRange prompt;    // several examples of a row may share it
  std::vector<TokenRange> completions;
};

struct PackedExamples {
  ExperienceBatch batch;                           // rows only, all of them one minibatch
  std::vector<std::vector<PackedExample>> of_row;  // [row], in order
};

struct ExamplePacking {
  int64_t microbatch_tokens = 4096;  // a row holds at most this, or one example
  int num_ranks = 1;                 // rows are about a num_ranks-th of the tokens, if that is less
  bool prompt_is_target = false;     // log-probs of prompts are wanted, except of their first token
};

// Packs `examples` in order. A prompt that several examples of a row have (the completions of a
// pair, labelled one by one) stands there once. `tokens_of` gives the tokens of an example.
//   INVALID_ARGUMENT  an empty prompt or completion (with the number of the example)
absl::StatusOr<PackedExamples> PackExamples(std::span<const int64_t> examples,
                                            const std::function<GroupTokens(int64_t)>& tokens_of,
                                            const ExamplePacking& packing);

}  // namespace tandem::trainer
