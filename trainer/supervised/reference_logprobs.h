// The reference policy's log-probs on disk, so that they are computed once for any number of runs.
// Used by `tandem train-preferences`. Free of LibTorch.
//
// A cache is a safetensors file with one tensor, "reference_logprobs" [N] F32: the log-probs of the
// tokens of all completions, example by example. Its metadata names what made it, and it is used
// for nothing else.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "trainer/experience/packed_rows.h"

namespace tandem::trainer {

// What log-probs are a function of, besides rounding by how rows are packed.
struct ReferenceIdentity {
  std::string weights_digest;  // CombinedDigest of the reference policy's tensors
  std::string tokenizer_hash;
  std::string sequences_digest;  // SequencesDigest of the examples
  std::string dtype, numerics;   // of the forward pass
};

// Of the ids of `count` examples, prompts and completions apart.
std::string SequencesDigest(int64_t count, const std::function<GroupTokens(int64_t)>& tokens_of);

// The tokens of all completions: how many log-probs there are.
int64_t NumCompletionTokens(int64_t count, const std::function<GroupTokens(int64_t)>& tokens_of);

// [num_tokens] as they were written.
//   NOT_FOUND            no such file
//   FAILED_PRECONDITION  it was made from something else (named, with both values)
//   INVALID_ARGUMENT, DATA_LOSS  no safetensors file, or one without this tensor
absl::StatusOr<std::vector<float>> ReadReferenceCache(const std::string& path,
                                                      const ReferenceIdentity& identity,
                                                      int64_t num_tokens);

// Writes the file atomically. Errors: those of WriteSafetensors.
absl::Status WriteReferenceCache(const std::string& path, const ReferenceIdentity& identity,
                                 std::span<const float> logprobs);

}  // namespace tandem::trainer
