#include "rollout_server/http/request_fields.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/status_macros.h"
#include "common/model/token_distribution.h"
#include "rollout_server/http/http_error.h"

namespace tandem::rollout {
namespace {

uint64_t NewSeed() {
  thread_local std::mt19937_64 seeds{std::random_device{}()};
  return seeds();
}

bool IsZero(const Json& value) { return value.is_number() && value.get<double>() == 0; }
bool IsOne(const Json& value) { return value.is_number() && value.get<double>() == 1; }
bool IsEmpty(const Json& value) {
  return (value.is_array() || value.is_object() || value.is_string()) &&
         (value.empty() || value == "");
}
bool IsFalse(const Json& value) { return value.is_boolean() && !value.get<bool>(); }
bool IsText(const Json& value) { return value.is_object() && value.value("type", "") == "text"; }
bool Never(const Json&) { return false; }

void InRange(JsonFields& fields, const char* name, bool holds, double value, const char* want) {
  if (!holds) fields.Fail(name, absl::StrCat(name, " is ", value, ", want ", want));
}

void ReadFilters(JsonFields& fields, SamplingParams* s) {
  if (const auto value = fields.Number("temperature")) {
    s->temperature = static_cast<float>(*value);
    InRange(fields, "temperature",
            *value == 0 || (*value >= kLeastTemperature && std::isfinite(*value)), *value,
            "0 (greedy), or 0.001 and more");
  }
  if (const auto value = fields.Number("top_p")) {
    s->top_p = static_cast<float>(*value);
    InRange(fields, "top_p", *value > 0 && *value <= 1, *value, "more than 0 and at most 1");
  }
  if (const auto value = fields.Integer("top_k", -1, kMostTokens)) {
    s->top_k = static_cast<int32_t>(std::max<int64_t>(*value, 0));  // -1 is off, as 0 is
  }
  if (const auto value = fields.Number("min_p")) {
    s->min_p = static_cast<float>(*value);
    InRange(fields, "min_p", *value >= 0 && *value < 1, *value, "0 or more and less than 1");
  }
}

void ReadStops(JsonFields& fields, const ModelFacts& facts, SamplingParams* s) {
  if (const Json* const stop = fields.Find("stop")) {
    const Json list = stop->is_string() ? Json::array({*stop}) : *stop;
    const bool are_texts = list.is_array() && list.size() <= kMaxStopStrings &&
                           std::all_of(list.begin(), list.end(), [](const Json& one) {
                             return one.is_string() && !one.get_ref<const std::string&>().empty() &&
                                    one.get_ref<const std::string&>().size() <= kMaxStopStringBytes;
                           });
    if (are_texts) {
      s->stop_strings = list.get<std::vector<std::string>>();
    } else {
      fields.Fail("stop", absl::StrCat("stop is ", JsonText(*stop).substr(0, 60),
                                       ", want a text or at most ", kMaxStopStrings,
                                       " texts of 1 to ", kMaxStopStringBytes, " bytes"));
    }
  }
  if (auto ids = fields.Ids("stop_token_ids", 0, facts.vocab_size - 1)) {
    s->stop_token_ids = *std::move(ids);
  }
  s->ignore_eos = fields.Flag("ignore_eos").value_or(false);
  s->min_new_tokens =
      static_cast<int32_t>(fields.Integer("min_tokens", 0, kMostTokens).value_or(0));
}

void RefuseUnsupported(JsonFields& fields) {
  constexpr std::string_view kNoRescore =
      "log-probs under it depend on ids in a way that a trainer does not score again";
  fields.Unsupported("presence_penalty", IsZero, kNoRescore);
  fields.Unsupported("frequency_penalty", IsZero, kNoRescore);
  fields.Unsupported("repetition_penalty", IsOne, kNoRescore);
  fields.Unsupported("logit_bias", IsEmpty, kNoRescore);
  for (const char* name : {"allowed_token_ids", "bad_words", "logprob_token_ids"}) {
    fields.Unsupported(name, IsEmpty, "");
  }
  fields.Unsupported("use_beam_search", IsFalse, "completions are drawn, not searched");
  fields.Unsupported("length_penalty", IsOne, "completions are drawn, not searched");
  fields.Unsupported("response_format", IsText, "there are no grammars");
  for (const char* name :
       {"structured_outputs", "guided_json", "guided_regex", "guided_choice", "guided_grammar"}) {
    fields.Unsupported(name, Never, "there are no grammars");
  }
  for (const char* name : {"kv_transfer_params", "ec_transfer_params", "prompt_embeds",
                           "repetition_detection", "thinking_token_budget", "features"}) {
    fields.Unsupported(name, IsEmpty, "");
  }
}

}  // namespace

absl::Status ReadModel(JsonFields& fields, const ModelFacts& facts, CompletionJob* job) {
  const std::optional<std::string> model = fields.Text("model");
  TANDEM_RETURN_IF_ERROR(fields.status());
  if (!model || model->empty() || *model == facts.name) return absl::OkStatus();
  if (std::ranges::find(facts.adapters, *model) != facts.adapters.end()) {
    job->adapter = *model;
    return absl::OkStatus();
  }
  std::vector<std::string> names = {facts.name};
  names.insert(names.end(), facts.adapters.begin(), facts.adapters.end());
  return AboutField("model", NotFound("The model `", *model, "` does not exist; this server has ",
                                      absl::StrJoin(names, ", ")));
}

void ReadSampling(JsonFields& fields, const ModelFacts& facts, CompletionJob* job,
                  AnswerRules* rules) {
  SamplingParams& s = job->sampling;
  job->num_completions =
      static_cast<int32_t>(fields.Integer("n", 1, facts.max_completions).value_or(1));
  constexpr int64_t kLeast = std::numeric_limits<int64_t>::min();
  constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
  const auto seed = fields.Integer("seed", kLeast, kMost);
  s.seed = seed ? static_cast<uint64_t>(*seed) : NewSeed();
  ReadFilters(fields, &s);
  ReadStops(fields, facts, &s);
  // Lower ones come first there, and higher ones here.
  constexpr int64_t kFar = std::numeric_limits<int32_t>::max();
  job->priority = static_cast<int32_t>(-fields.Integer("priority", -kFar, kFar).value_or(0));
  job->cache_salt = fields.Text("cache_salt").value_or("");
  job->request_id = fields.Text("request_id").value_or("");
  rules->skip_special_tokens = fields.Flag("skip_special_tokens").value_or(true);
  rules->include_stop = fields.Flag("include_stop_str_in_output").value_or(false);
  rules->tokens_as_ids = fields.Flag("return_tokens_as_token_ids").value_or(false);
  rules->token_ids = fields.Flag("return_token_ids").value_or(false);
  if (const auto mode = fields.Text("logprobs_mode")) {
    rules->raw_logprobs = *mode == "raw_logprobs";
    if (!rules->raw_logprobs && *mode != "processed_logprobs") {
      fields.Fail("logprobs_mode", absl::StrCat("logprobs_mode is ", *mode,
                                                ", want processed_logprobs or raw_logprobs"));
    }
  }
  RefuseUnsupported(fields);
  fields.Ignore({"spaces_between_special_tokens", "watermarking", "detokenize", "output_kind",
                 "routed_experts_prompt_start", "vllm_xargs", "extra_args", "skip_clone",
                 "session_id", "stream_interval", "return_token_offsets", "return_mm_kwargs",
                 "truncation_side"});
}

void ReadDelivery(JsonFields& fields, AnswerRules* rules) {
  rules->stream = fields.Flag("stream").value_or(false);
  if (const Json* const options = fields.Find("stream_options")) {
    if (options->is_object()) {
      JsonFields inner(*options, "stream_options.");
      rules->include_usage = inner.Flag("include_usage").value_or(false);
      rules->continuous_usage = inner.Flag("continuous_usage_stats").value_or(false);
      if (!inner.status().ok()) {
        fields.Fail("stream_options", std::string(inner.status().message()));
      }
    } else {
      fields.Fail("stream_options", "stream_options is no object");
    }
  }
  fields.Ignore({"user", "metadata", "store", "service_tier", "safety_identifier",
                 "prompt_cache_key", "prompt_cache_retention", "verbosity"});
}

int32_t RoomFor(const ModelFacts& facts, int64_t prompt_tokens, int64_t num_completions) {
  // The scheduler counts whole blocks of the worst case, one more for each completion.
  constexpr int64_t kBlocks = 32;
  const int64_t kv =
      (facts.kv_capacity_tokens - prompt_tokens) / std::max<int64_t>(num_completions, 1);
  return static_cast<int32_t>(
      std::clamp<int64_t>(std::min(facts.context_tokens - prompt_tokens, kv - kBlocks), 1,
                          std::numeric_limits<int32_t>::max()));
}

absl::Status CheckContext(const ModelFacts& facts, const CompletionJob& job) {
  for (const std::vector<int32_t>& prompt : job.prompts) {
    const int64_t size = std::ssize(prompt), wanted = job.sampling.max_new_tokens;
    if (size + wanted > facts.context_tokens) {
      return ContextExceeded(size, wanted, facts.context_tokens);
    }
  }
  return absl::OkStatus();
}

}  // namespace tandem::rollout
