// ProbeSet: the completions that both sides score again and again (docs/attribution.md): the first
// of a run, or those of a file. Kept in the run directory, with a digest, so that a resumed run
// asks for the same.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "proto/experience.pb.h"

namespace tandem::trainer {

struct ProbeSet {
  // Ids alone matter; log-probs are 0 and versions too.
  std::vector<experience::v1::ScoredGroup> groups;
  std::string digest;  // XXH3-128 of the ids and their places

  bool empty() const { return groups.empty(); }
  int64_t num_completions() const;
  // [T] number of each token's completion, in the order of Flatten (group_logprobs.h).
  std::vector<int32_t> CompletionOfTokens() const;
};

// At most `count` trained completions: the first of every group, then the second ones, and so on.
ProbeSet ChooseProbeSet(const std::vector<experience::v1::ScoredGroup>& groups, int64_t count);

// JSON lines: {"prompt_token_ids": [..], "completion_token_ids": [..]}, a completion each; those
// with one prompt that follow each other are a group. Write puts {"probe_set": 1, "digest": ".."}
// first, and Read checks it when it is there.
//   NOT_FOUND         no such file
//   INVALID_ARGUMENT  names line and field
//   DATA_LOSS         the completions have another digest
absl::StatusOr<ProbeSet> ReadProbeSet(const std::string& path);
absl::Status WriteProbeSet(const std::string& path, const ProbeSet& set);

// Can a model of this vocabulary and context score it?
//   INVALID_ARGUMENT  names `path`, the completion, and the id or the length
absl::Status CheckProbeSet(const ProbeSet& set, const std::string& path, int64_t vocab_size,
                           int64_t max_context_tokens);

}  // namespace tandem::trainer
