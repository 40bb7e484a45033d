// Importers of what inference engines answer: vLLM, SGLang, llama.cpp's server, and endpoints in the
// form of OpenAI's. An item is an answer, or an object {"request": ..., "response": ...} of the two
// bodies, which also says the prompt's token ids and the sampling parameters where the answer does not.
// docs/foreign_engines.md names the source files in which the layouts were read.
//
// A record is token ids: answers that have texts only are refused, with the option that gives ids,
// since two texts can be one token and one text can be two.
#pragma once

#include "absl/status/status.h"
#include "drift_lab/importers/import_context.h"
#include "drift_lab/records/records.h"
#include "nlohmann/json_fwd.hpp"

namespace tandem::drift {

// /v1/completions, /v1/chat/completions, /inference/v1/generate, or RequestOutput of vllm.LLM as JSON.
void DescribeVllm(RecordsHeader& header);
absl::Status AddVllm(const nlohmann::json& item, ImportContext& context);

// /generate with return_logprob: meta_info.output_token_logprobs, and input_token_logprobs for the
// prompt's ids.
void DescribeSglang(RecordsHeader& header);
absl::Status AddSglang(const nlohmann::json& item, ImportContext& context);

// /completion of llama.cpp's server with n_probs: completion_probabilities. Its OpenAI form is read as
// AddOpenAi does.
void DescribeLlamaCpp(RecordsHeader& header);
absl::Status AddLlamaCpp(const nlohmann::json& item, ImportContext& context);

// choices[] with logprobs, and token ids where the endpoint gives them.
void DescribeOpenAi(RecordsHeader& header);
absl::Status AddOpenAi(const nlohmann::json& item, ImportContext& context);

}  // namespace tandem::drift
