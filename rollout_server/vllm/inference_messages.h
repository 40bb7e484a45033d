// vLLM's gRPC messages for generation, as jobs and from what jobs give. Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "rollout_server/completions/choice_text.h"
#include "rollout_server/completions/completion_job.h"
#include "rollout_server/engine/sampling/score_options.h"
#include "rollout_server/http/prompt_fields.h"
#include "rollout_server/http/request_fields.h"

namespace vllm {
class GenerateRequest;
class PromptInfo;
class SequenceOutput;
}  // namespace vllm

namespace tandem::rollout {

// A request, with what its responses show.
struct InferenceRequest {
  CompletionJob job;
  TextRules text;
  std::vector<int32_t> eos_token_ids;
  bool prompt_token_ids = false, prompt_logprobs = false;
  bool output_text = true, output_token_ids = false, output_logprobs = false;
};

//   INVALID_ARGUMENT  a field is out of range, or asks for what this server does not do (named)
//   NOT_FOUND         another model or adapter
absl::StatusOr<InferenceRequest> InferenceFromWire(const vllm::GenerateRequest& request,
                                                   const ModelFacts& facts,
                                                   const PromptReader& prompts);

// `score` may be null: the prompt was not scored.
void PromptToWire(const InferenceRequest& request, const SequenceScore* score,
                  vllm::PromptInfo* wire);

// Adds a drawn token to an output, without its text.
void AddToken(const InferenceRequest& request, int32_t id, float logprob,
              const std::vector<TopLogprob>& top, vllm::SequenceOutput* wire);

void FinishToWire(const InferenceRequest& request, const FinishedCompletion& completion,
                  vllm::SequenceOutput* wire);

}  // namespace tandem::rollout
