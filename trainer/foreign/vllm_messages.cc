#include "trainer/foreign/vllm_messages.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/base/foreign_json.h"
#include "common/base/json.h"
#include "common/base/status_macros.h"
#include "common/weights/digest.h"

namespace tandem::trainer {
namespace {

using nlohmann::json;
using rollout::v1::Completion;
using rollout::v1::GenerateGroupRequest;
using rollout::v1::SamplingParams;

constexpr int kDeepestAnswer = 32;
// vLLM writes this in place of minus infinity.
constexpr double kVllmMinusInfinity = -9999;

absl::StatusOr<json> ParseAnswer(const std::string& answer, const char* route) {
  if (NestsDeeperThan(answer, kDeepestAnswer)) {
    return DataLoss(route, " nests deeper than ", kDeepestAnswer);
  }
  json parsed = json::parse(answer, nullptr, /*allow_exceptions=*/false);
  if (parsed.is_discarded()) return DataLoss(route, " is ", JsonFault(answer));
  return parsed;
}

// The member, or null where the value is no object or has none.
const json& Member(const json& value, const char* name) {
  static const json none;
  if (!value.is_object()) return none;
  const auto found = value.find(name);
  return found == value.end() ? none : *found;
}

std::string TextOf(const json& value) {
  return value.is_string() ? value.get<std::string>() : std::string();
}

absl::StatusOr<std::vector<int32_t>> IdsOf(const json& values, const char* what) {
  if (!values.is_array()) return DataLoss(what, " is no list");
  std::vector<int32_t> ids;
  for (const json& value : values) {
    if (!value.is_number_integer()) return DataLoss(what, " has an entry that is no id");
    ids.push_back(value.get<int32_t>());
  }
  return ids;
}

// Token ids of a choice: token_ids, or the "token_id:7" texts of servers before return_token_ids.
absl::StatusOr<std::vector<int32_t>> IdsOfChoice(const json& choice) {
  if (const json& given = Member(choice, "token_ids"); given.is_array()) {
    return IdsOf(given, "choices[].token_ids");
  }
  std::vector<int32_t> ids;
  constexpr std::string_view kPrefix = "token_id:";
  for (const json& token : Member(Member(choice, "logprobs"), "tokens")) {
    const std::string text = TextOf(token);
    int32_t id = 0;
    if (!text.starts_with(kPrefix) || !absl::SimpleAtoi(text.substr(kPrefix.size()), &id)) {
      ids.clear();
      break;
    }
    ids.push_back(id);
  }
  if (!ids.empty()) return ids;
  return DataLoss(
      "the answer has neither choices[].token_ids (return_token_ids, vLLM 0.10.1 and "
      "later) nor 'token_id:' texts (return_tokens_as_token_ids)");
}

absl::StatusOr<rollout::v1::FinishReason> FinishOf(const json& choice) {
  const std::string reason = TextOf(Member(choice, "finish_reason"));
  if (reason == "length") return rollout::v1::FINISH_REASON_LENGTH;
  if (reason == "stop") {
    return Member(choice, "stop_reason").is_string() ? rollout::v1::FINISH_REASON_STOP_STRING
                                                     : rollout::v1::FINISH_REASON_STOP;
  }
  if (reason == "abort") return Aborted("the server ended the completions before their end");
  return DataLoss("finish_reason '", reason, "' is neither stop nor length");
}

absl::Status AddLogprobs(const json& choice, int num_tokens, Completion* completion) {
  const json& logprobs = Member(Member(choice, "logprobs"), "token_logprobs");
  if (!logprobs.is_array() || static_cast<int>(logprobs.size()) != num_tokens) {
    return DataLoss(num_tokens, " token ids with ", logprobs.size(),
                    " log-probs in choices[].logprobs.token_logprobs");
  }
  for (const json& value : logprobs) {
    if (!value.is_number() || value.get<double>() <= kVllmMinusInfinity) {
      return DataLoss("a sampled token has log-prob ", value.dump(),
                      ", which no token that was drawn has");
    }
    completion->add_behaviour_logprobs(value.get<float>());
  }
  return absl::OkStatus();
}

absl::StatusOr<Completion> CompletionOf(const GenerateGroupRequest& request, bool greedy,
                                        int64_t version, const json& choice) {
  Completion completion;
  TANDEM_ASSIGN_OR_RETURN(const rollout::v1::FinishReason finish, FinishOf(choice));
  TANDEM_ASSIGN_OR_RETURN(const std::vector<int32_t> ids, IdsOfChoice(choice));
  if (ids.empty()) return DataLoss("a completion has no tokens");
  const auto num_tokens = static_cast<int>(ids.size());
  *completion.mutable_token_ids() = {ids.begin(), ids.end()};
  TANDEM_RETURN_IF_ERROR(AddLogprobs(choice, num_tokens, &completion));
  // Greedy log-probs are of the model's distribution as it is, in either mode of the server.
  if (greedy) *completion.mutable_raw_logprobs() = completion.behaviour_logprobs();
  completion.set_greedy(greedy || request.sampling().temperature() == 0);
  completion.set_finish_reason(finish);
  completion.set_text(TextOf(Member(choice, "text")));
  completion.set_token_hash(HashTokenIds(ids));
  completion.set_seed(request.sampling().seed());
  rollout::v1::VersionSpan* const span = completion.add_version_spans();
  span->set_weight_version(version);
  span->set_num_tokens(num_tokens);
  return completion;
}

// vLLM seeds completion i with seed + i, as a signed number. Half of the range leaves room for that.
int64_t SeedOf(const GenerateGroupRequest& request) {
  return static_cast<int64_t>(request.sampling().seed() >> 2) + request.first_completion();
}

// "torch.bfloat16" and "bfloat16" are "bfloat16".
std::string PlainDType(std::string name) {
  constexpr std::string_view kPrefix = "torch.";
  return name.starts_with(kPrefix) ? name.substr(kPrefix.size()) : name;
}

}  // namespace

std::string CompletionBody(const std::string& model, const GenerateGroupRequest& request,
                           bool greedy) {
  const SamplingParams& sampling = request.sampling();
  const bool filters = !greedy && sampling.temperature() > 0;
  json body = {
      {"model", model},
      {"prompt",
       std::vector<int32_t>(request.prompt_token_ids().begin(), request.prompt_token_ids().end())},
      {"n", greedy ? 1 : request.num_completions()},
      {"max_tokens", sampling.max_new_tokens()},
      {"min_tokens", sampling.min_new_tokens()},
      {"temperature", greedy ? 0.0f : sampling.temperature()},
      {"top_k", filters && sampling.top_k() > 0 ? sampling.top_k() : -1},
      {"top_p", filters && sampling.top_p() > 0 ? sampling.top_p() : 1.0f},
      {"min_p", filters ? sampling.min_p() : 0.0f},
      {"repetition_penalty", 1.0},
      {"presence_penalty", 0.0},
      {"frequency_penalty", 0.0},
      {"ignore_eos", sampling.ignore_eos()},
      {"stop_token_ids",
       std::vector<int32_t>(sampling.stop_token_ids().begin(), sampling.stop_token_ids().end())},
      {"stop",
       std::vector<std::string>(sampling.stop_strings().begin(), sampling.stop_strings().end())},
      {"seed", SeedOf(request)},
      {"logprobs", 0},
      {"return_token_ids", true},
      {"return_tokens_as_token_ids", true},
      {"add_special_tokens", false}};
  return body.dump(-1, ' ', false, json::error_handler_t::replace);
}

absl::StatusOr<std::vector<Completion>> ReadCompletions(const GenerateGroupRequest& request,
                                                        bool greedy, int64_t version,
                                                        const std::string& answer) {
  TANDEM_ASSIGN_OR_RETURN(const json parsed, ParseAnswer(answer, "the answer of /v1/completions"));
  const json& choices = Member(parsed, "choices");
  const int wanted = greedy ? 1 : request.num_completions();
  if (!choices.is_array() || static_cast<int>(choices.size()) != wanted) {
    return DataLoss("the answer of /v1/completions has ", choices.size(), " choices, want ",
                    wanted);
  }
  const int first = request.first_completion() + (greedy ? request.num_completions() : 0);
  std::vector<Completion> completions;
  for (size_t i = 0; i < choices.size(); ++i) {
    auto completion = CompletionOf(request, greedy, version, choices[i]);
    if (!completion.ok()) {
      return absl::Status(completion.status().code(),
                          absl::StrCat("completion ", i, ": ", completion.status().message()));
    }
    completion->set_index(first + static_cast<int>(i));
    completions.push_back(*std::move(completion));
  }
  return completions;
}

std::string ScoreBody(const std::string& model, std::span<const int32_t> ids) {
  const json body = {{"model", model},
                     {"prompt", std::vector<int32_t>(ids.begin(), ids.end())},
                     {"max_tokens", 1},
                     {"temperature", 0},
                     {"prompt_logprobs", 0},
                     {"return_token_ids", true},
                     {"add_special_tokens", false}};
  return body.dump();
}

absl::StatusOr<std::vector<float>> ReadScores(std::span<const int32_t> ids,
                                              const std::string& answer) {
  TANDEM_ASSIGN_OR_RETURN(const json parsed, ParseAnswer(answer, "the answer of /v1/completions"));
  const json& choices = Member(parsed, "choices");
  if (!choices.is_array() || choices.size() != 1) {
    return DataLoss("the answer to a score has ", choices.size(), " choices, want 1");
  }
  const json& given = Member(choices[0], "prompt_logprobs");
  if (!given.is_array() || given.size() != ids.size()) {
    return DataLoss("choices[0].prompt_logprobs has ", given.size(), " entries for ", ids.size(),
                    " ids");
  }
  std::vector<float> scores = {0};
  for (size_t t = 1; t < ids.size(); ++t) {
    const json& entry = Member(Member(given[t], absl::StrCat(ids[t]).c_str()), "logprob");
    if (!entry.is_number()) {
      return DataLoss("choices[0].prompt_logprobs[", t, "] has no log-prob of id ", ids[t]);
    }
    scores.push_back(entry.get<float>());
  }
  return scores;
}

absl::StatusOr<VllmFacts> ReadFacts(const std::string& version, const std::string& models,
                                    const std::string& server_info) {
  VllmFacts facts;
  TANDEM_ASSIGN_OR_RETURN(const json listed, ParseAnswer(models, "the answer of /v1/models"));
  const json& data = Member(listed, "data");
  if (!data.is_array() || data.empty() || TextOf(Member(data[0], "id")).empty()) {
    return DataLoss("/v1/models names no model");
  }
  facts.model = TextOf(Member(data[0], "id"));
  facts.root = TextOf(Member(data[0], "root"));
  const json& longest = Member(data[0], "max_model_len");
  if (longest.is_number_integer()) facts.max_model_len = longest.get<int64_t>();
  if (!version.empty()) {
    TANDEM_ASSIGN_OR_RETURN(const json said, ParseAnswer(version, "the answer of /version"));
    facts.version = TextOf(Member(said, "version"));
  }
  if (server_info.empty()) return facts;
  TANDEM_ASSIGN_OR_RETURN(const json info, ParseAnswer(server_info, "the answer of /server_info"));
  const json& config = Member(Member(info, "vllm_config"), "model_config");
  facts.dtype = PlainDType(TextOf(Member(config, "dtype")));
  facts.logprobs_mode = TextOf(Member(config, "logprobs_mode"));
  return facts;
}

absl::StatusOr<std::map<std::string, std::string>> ReadChecksums(const std::string& answer) {
  TANDEM_ASSIGN_OR_RETURN(const json parsed, ParseAnswer(answer, "the answer of /weight_checker"));
  std::map<std::string, std::string> checksums;
  for (const auto& [name, value] : Member(parsed, "checksums").items()) {
    checksums[name] = TextOf(value);
  }
  if (checksums.empty()) return DataLoss("the answer of /weight_checker has no checksums");
  return checksums;
}

absl::StatusOr<std::vector<int32_t>> ReadTokens(const std::string& answer) {
  TANDEM_ASSIGN_OR_RETURN(const json parsed, ParseAnswer(answer, "the answer of /tokenize"));
  return IdsOf(Member(parsed, "tokens"), "tokens of /tokenize");
}

}  // namespace tandem::trainer
