// The bodies of vLLM's HTTP calls and what their answers hold (stages 1 to 3 against a foreign
// server). Field names are those of vLLM 0.32's /v1/completions and of its development routes. Pure.
// Used by foreign_server.cc.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "proto/rollout.pb.h"

namespace tandem::trainer {

// The body of POST /v1/completions for the completions of a group or, with `greedy`, for its greedy
// baseline. Every sampling parameter is set, since the server fills those that are left out from
// the model's generation_config.json.
std::string CompletionBody(const std::string& model,
                           const rollout::v1::GenerateGroupRequest& request, bool greedy);

// The completions of the answer to CompletionBody, all of weights `version`. What vLLM does not say
// stays empty: raw log-probs, entropies, second moments, retained probability mass.
//   ABORTED    the server ended the completions, as it does before it takes new weights
//   DATA_LOSS  the answer is not what vLLM answers, or lacks token ids or log-probs (named)
absl::StatusOr<std::vector<rollout::v1::Completion>> ReadCompletions(
    const rollout::v1::GenerateGroupRequest& request, bool greedy, int64_t version,
    const std::string& answer);

// The body of a POST /v1/completions that scores `ids` as a prompt.
std::string ScoreBody(const std::string& model, std::span<const int32_t> ids);

// [T] natural log-probs of `ids`, each given those before it; the first is 0. Temperature 1, no
// filters: vLLM scores prompts in no other way.
//   DATA_LOSS  the answer has no prompt log-probs of these ids
absl::StatusOr<std::vector<float>> ReadScores(std::span<const int32_t> ids,
                                              const std::string& answer);

// How one server describes itself.
struct VllmFacts {
  std::string version;        // "0.32.0"
  std::string model;          // as requests must name it
  std::string root;           // directory or Hub name of the model
  int64_t max_model_len = 0;  // 0: not said
  std::string dtype;          // "bfloat16", "float32", "float16", or empty: not said
  std::string logprobs_mode;  // "raw_logprobs", "processed_logprobs", or empty: not said
};

// From the answers of /version, /v1/models and /server_info?config_format=json; empty answers leave
// their fields empty.
//   DATA_LOSS  /v1/models names no model
absl::StatusOr<VllmFacts> ReadFacts(const std::string& version, const std::string& models,
                                    const std::string& server_info);

// Parameter to SHA-256, from the answer of /weight_checker.
//   DATA_LOSS  it has no checksums
absl::StatusOr<std::map<std::string, std::string>> ReadChecksums(const std::string& answer);

// The ids in the answer of /tokenize.
//   DATA_LOSS  there are none
absl::StatusOr<std::vector<int32_t>> ReadTokens(const std::string& answer);

}  // namespace tandem::trainer
