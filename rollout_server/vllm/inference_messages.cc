#include "rollout_server/vllm/inference_messages.h"

#include <algorithm>
#include <cmath>
#include <random>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/status_macros.h"
#include "common/model/token_distribution.h"
#include "proto/vllm/inference.pb.h"
#include "rollout_server/engine/sampling/completion.h"
#include "rollout_server/engine/sampling/score_options.h"
#include "rollout_server/http/json_fields.h"

namespace tandem::rollout {
namespace {

constexpr int32_t kDefaultMaxNewTokens = 20;  // vLLM's

absl::Status Refuse(const char* field) {
  return InvalidArgument(field, " is set: this server does not do that");
}

absl::Status CheckUnsupported(const vllm::GenerateRequest& request) {
  const vllm::DecodingParameters& decoding = request.decoding();
  if (decoding.presence_penalty() != 0) return Refuse("decoding.presence_penalty");
  if (decoding.frequency_penalty() != 0) return Refuse("decoding.frequency_penalty");
  if (decoding.repetition_penalty() != 0 && decoding.repetition_penalty() != 1) {
    return Refuse("decoding.repetition_penalty");
  }
  if (!decoding.logit_bias().empty()) return Refuse("decoding.logit_bias");
  if (!decoding.allowed_token_ids().empty()) return Refuse("decoding.allowed_token_ids");
  if (decoding.structured_output_case() != vllm::DecodingParameters::STRUCTURED_OUTPUT_NOT_SET) {
    return Refuse("decoding.structured_output");
  }
  if (!request.media().empty()) return Refuse("media");
  if (request.kv().has_kv_transfer_params()) return Refuse("kv.kv_transfer_params");
  if (request.kv().has_ec_transfer_params()) return Refuse("kv.ec_transfer_params");
  return absl::OkStatus();
}

absl::StatusOr<int32_t> TopOf(const vllm::CandidateTokens& candidates, const char* field) {
  if (candidates.select_case() == vllm::CandidateTokens::SELECT_NOT_SET) return 0;
  if (candidates.select_case() != vllm::CandidateTokens::kTopN ||
      candidates.top_n() > static_cast<uint32_t>(kMaxTopLogprobs)) {
    return InvalidArgument(field, " must be top_n of at most ", kMaxTopLogprobs);
  }
  return static_cast<int32_t>(candidates.top_n());
}

absl::Status ReadNames(const vllm::GenerateRequest& request, const ModelFacts& facts,
                       CompletionJob* job) {
  const Json names = {{"model", request.model()}};
  JsonFields fields(names);
  TANDEM_RETURN_IF_ERROR(ReadModel(fields, facts, job));
  if (request.lora_name().empty()) return absl::OkStatus();
  if (std::ranges::find(facts.adapters, request.lora_name()) == facts.adapters.end()) {
    return NotFound("lora_name is '", request.lora_name(), "'; this server has ",
                    facts.adapters.empty() ? "no adapters" : absl::StrJoin(facts.adapters, ", "));
  }
  job->adapter = request.lora_name();
  return absl::OkStatus();
}

absl::StatusOr<std::vector<int32_t>> PromptOf(const vllm::GenerateRequest& request,
                                              const ModelFacts& facts,
                                              const PromptReader& prompts) {
  std::vector<int32_t> ids;
  if (request.prompt_case() == vllm::GenerateRequest::kText) {
    TANDEM_ASSIGN_OR_RETURN(ids, prompts.Encode(request.text(), /*add_special_tokens=*/true));
  }
  for (const uint32_t id : request.token_ids().ids()) {
    if (id >= static_cast<uint64_t>(facts.vocab_size)) {
      return InvalidArgument("token_ids has ", id, ", want ids below ", facts.vocab_size);
    }
    ids.push_back(static_cast<int32_t>(id));
  }
  if (ids.empty()) return InvalidArgument("the prompt is empty: want text or token_ids");
  const size_t most = request.truncate_prompt_tokens();
  if (most > 0 && ids.size() > most) ids.erase(ids.begin(), ids.end() - static_cast<int64_t>(most));
  return ids;
}

SamplingParams SamplingOf(const vllm::GenerateRequest& request) {
  const vllm::RandomSampling& random = request.sampling();
  const vllm::StoppingCriteria& stopping = request.stopping();
  SamplingParams s;
  s.temperature = request.temperature();
  s.top_k = static_cast<int32_t>(std::min<uint32_t>(random.top_k(), kMostTokens));
  if (random.top_p() != 0) s.top_p = random.top_p();
  s.min_p = random.min_p();
  s.seed = random.has_seed() ? static_cast<uint64_t>(random.seed()) : std::random_device{}();
  s.max_new_tokens =
      stopping.max_new_tokens() == 0
          ? kDefaultMaxNewTokens
          : static_cast<int32_t>(std::min<uint32_t>(stopping.max_new_tokens(), kMostTokens));
  s.min_new_tokens =
      static_cast<int32_t>(std::min<uint32_t>(stopping.min_new_tokens(), kMostTokens));
  s.stop_token_ids.assign(stopping.stop_token_ids().begin(), stopping.stop_token_ids().end());
  s.stop_strings.assign(stopping.stop_strings().begin(), stopping.stop_strings().end());
  s.ignore_eos = stopping.ignore_eos();
  return s;
}

void AddCandidates(const std::vector<TopLogprob>& top, vllm::CandidateTokenInfo* wire) {
  uint32_t rank = 0;
  for (const TopLogprob& one : top) {
    auto* const token = wire->add_tokens();
    token->set_id(static_cast<uint32_t>(one.id));
    token->set_logprob(one.logprob);
    token->set_rank(++rank);
  }
}

}  // namespace

absl::StatusOr<InferenceRequest> InferenceFromWire(const vllm::GenerateRequest& request,
                                                   const ModelFacts& facts,
                                                   const PromptReader& prompts) {
  TANDEM_RETURN_IF_ERROR(CheckUnsupported(request));
  InferenceRequest read;
  CompletionJob& job = read.job;
  TANDEM_RETURN_IF_ERROR(ReadNames(request, facts, &job));
  TANDEM_ASSIGN_OR_RETURN(auto prompt, PromptOf(request, facts, prompts));
  job.prompts.push_back(std::move(prompt));
  if (request.sampling().num_sequences() > static_cast<uint64_t>(facts.max_completions)) {
    return InvalidArgument("sampling.num_sequences is ", request.sampling().num_sequences(),
                           ", want at most ", facts.max_completions);
  }
  job.num_completions = std::max(1, static_cast<int32_t>(request.sampling().num_sequences()));
  job.sampling = SamplingOf(request);
  job.priority = -std::max(request.priority(), -(1 << 30));
  job.request_id = request.request_id();
  job.cache_salt = request.kv().cache_salt();
  if (request.kv().bypass_prefix_cache()) {
    job.cache_salt = absl::StrCat("alone ", std::random_device{}(), " ", std::random_device{}());
  }
  const vllm::ResponseOptions& response = request.response();
  TANDEM_ASSIGN_OR_RETURN(job.sampling.top_logprobs,
                          TopOf(response.output_candidates(), "response.output_candidates"));
  TANDEM_ASSIGN_OR_RETURN(job.prompt_top_logprobs,
                          TopOf(response.prompt_candidates(), "response.prompt_candidates"));
  TANDEM_RETURN_IF_ERROR(ValidateSampling(job.sampling));
  TANDEM_RETURN_IF_ERROR(CheckContext(facts, job));
  read.prompt_logprobs = response.prompt_logprobs();
  job.score_prompts = read.prompt_logprobs || job.prompt_top_logprobs > 0;
  read.prompt_token_ids = response.prompt_token_ids();
  read.output_text = !response.has_output_text() || response.output_text();
  read.output_token_ids = response.output_token_ids();
  read.output_logprobs = response.output_logprobs();
  read.text.skip_special_tokens =
      !response.has_skip_special_tokens() || response.skip_special_tokens();
  read.text.include_stop = request.stopping().include_stop_strings();
  read.text.stop_strings = job.sampling.stop_strings;
  return read;
}

void PromptToWire(const InferenceRequest& request, const SequenceScore* score,
                  vllm::PromptInfo* wire) {
  const std::vector<int32_t>& ids = request.job.prompts[0];
  wire->set_num_prompt_tokens(static_cast<uint32_t>(ids.size()));
  if (request.prompt_token_ids) wire->mutable_token_ids()->Add(ids.begin(), ids.end());
  if (score == nullptr) return;
  for (size_t t = 0; t < ids.size(); ++t) {
    const bool scored = t > 0 && !score->raw_logprobs.empty();
    if (request.prompt_logprobs) {
      wire->add_logprobs(scored ? score->raw_logprobs[t] : NAN);
      wire->add_ranks(scored ? static_cast<uint32_t>(score->ranks[t]) + 1 : 0);
    }
    if (request.job.prompt_top_logprobs == 0) continue;
    auto* const candidates = wire->add_candidate_tokens();
    if (scored) AddCandidates(score->top[t], candidates);
  }
}

void AddToken(const InferenceRequest& request, int32_t id, float logprob,
              const std::vector<TopLogprob>& top, vllm::SequenceOutput* wire) {
  wire->set_num_tokens(wire->num_tokens() + 1);
  if (request.output_token_ids) wire->add_token_ids(static_cast<uint32_t>(id));
  if (request.output_logprobs) wire->add_logprobs(logprob);
  if (request.job.sampling.top_logprobs > 0) AddCandidates(top, wire->add_candidate_tokens());
}

void FinishToWire(const InferenceRequest& request, const FinishedCompletion& completion,
                  vllm::SequenceOutput* wire) {
  vllm::FinishInfo* const info = wire->mutable_finish_info();
  info->set_num_output_tokens(static_cast<uint32_t>(completion.num_tokens()));
  switch (completion.finish_reason) {
    case FinishReason::kLength:
      info->set_finish_reason(vllm::FinishInfo::LENGTH);
      return;
    case FinishReason::kStoppedEarly:
      info->set_finish_reason(vllm::FinishInfo::ABORTED);
      return;
    case FinishReason::kStopString:
      info->set_finish_reason(vllm::FinishInfo::STOP);
      info->set_stop_string(StopStringOf(request.text, completion));
      return;
    case FinishReason::kStop:
      break;
  }
  info->set_finish_reason(vllm::FinishInfo::STOP);
  const int32_t last = completion.token_ids.back();
  const auto& ends = request.eos_token_ids;
  if (std::ranges::find(ends, last) != ends.end()) {
    info->set_eos_token_id(static_cast<uint32_t>(last));
  } else {
    info->set_stop_token_id(static_cast<uint32_t>(last));
  }
}

}  // namespace tandem::rollout
