// CompletionJob: what a caller of a text protocol asks for, apart from the protocol: completions of
// one or several prompts, and scores of the prompts' own tokens.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "rollout_server/engine/sampling/sampling_params.h"

namespace tandem::rollout {

inline constexpr size_t kMaxJobPrompts = 1024;

struct CompletionJob {
  std::vector<std::vector<int32_t>> prompts;  // [P] each, P >= 1
  int32_t num_completions = 1;                // of each prompt
  SamplingParams sampling;                    // max_new_tokens 0: nothing is drawn
  std::string adapter;                        // one of EngineOptions::lora_modules, or empty
  int32_t priority = 0;                       // higher ones first
  bool stream = false;                        // tokens as they are drawn
  // Scores of the prompts' tokens under the model itself (temperature 1, no filters).
  bool score_prompts = false;
  int32_t prompt_top_logprobs = 0;  // how many of the most likely ids to give beside each token
  std::string cache_salt;  // KV of prompts is shared among jobs of one salt only; empty: of none
  std::string request_id;  // the caller's own name for the job; empty: the server makes one

  // The place of a completion among all of the job.
  size_t ChoiceOf(size_t prompt, int32_t index) const {
    return prompt * static_cast<size_t>(num_completions) + static_cast<size_t>(index);
  }
  size_t num_choices() const { return prompts.size() * static_cast<size_t>(num_completions); }
};

}  // namespace tandem::rollout
