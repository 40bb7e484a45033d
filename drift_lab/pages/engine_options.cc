#include "drift_lab/pages/engine_options.h"

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <string_view>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"

namespace tandem::drift {
namespace {

enum Engine : uint8_t {
  kVllm,
  kSglang,
  kTransformers,
  kLlamaCpp,
  kNumEngines,
  kOther = kNumEngines
};

Engine EngineOf(const std::string& name) {
  const std::string lower = absl::AsciiStrToLower(name);
  if (lower == "vllm") return kVllm;
  if (lower == "sglang") return kSglang;
  if (lower == "transformers") return kTransformers;
  return lower == "llama_cpp" || lower == "llama.cpp" ? kLlamaCpp : kOther;
}

struct OptionsOfCause {
  std::string_view cause;
  std::string_view names[kNumEngines];
};

// Fields of requests have no dashes; "config.json: x" is a field of the model that is loaded.
constexpr OptionsOfCause kOptions[] = {
    {"temperature",
     {"temperature, --generation-config, --override-generation-config", "temperature",
      "temperature of GenerationConfig", "temperature, --temp (0.8 unless set)"}},
    {"raw_logprobs",
     {"--logprobs-mode (raw_logprobs unless set; processed_logprobs)",
      "the environment variable SGLANG_RETURN_ORIGINAL_LOGPROB",
      "output_scores for processed, output_logits for raw", "post_sampling_probs"}},
    {"top_k",
     {"top_k, --generation-config, --override-generation-config", "top_k",
      "top_k of GenerationConfig", "top_k, --top-k (40 unless set)"}},
    {"top_p",
     {"top_p, --generation-config, --override-generation-config", "top_p",
      "top_p of GenerationConfig", "top_p, --top-p (0.95 unless set)"}},
    {"min_p",
     {"min_p, --generation-config, --override-generation-config", "min_p",
      "min_p of GenerationConfig", "min_p, --min-p (0.05 unless set)"}},
    {"typical_p", {"", "", "typical_p of GenerationConfig", "typical_p, --typical (1 unless set)"}},
    {"no_filter",
     {"top_k, top_p, min_p", "top_k, top_p, min_p", "top_k, top_p, min_p of GenerationConfig",
      "top_k, top_p, min_p"}},
    {"repetition_penalty",
     {"repetition_penalty, --generation-config, --override-generation-config", "repetition_penalty",
      "repetition_penalty of GenerationConfig", "repeat_penalty, repeat_last_n"}},
    {"frequency_penalty", {"frequency_penalty", "frequency_penalty", "", "frequency_penalty"}},
    {"presence_penalty", {"presence_penalty", "presence_penalty", "", "presence_penalty"}},
    {"end_token_ban",
     {"min_tokens, ignore_eos", "min_new_tokens, ignore_eos",
      "min_new_tokens, min_length of GenerationConfig", "ignore_eos, --ignore-eos"}},
    {"filter_order", {"", "", "", "samplers, --samplers (temperature last unless set)"}},
    {"logit_softcap",
     {"--hf-overrides", "--json-model-override-args", "config.json: final_logit_softcapping",
      "--override-kv"}},
    {"rms_norm_eps",
     {"--hf-overrides", "--json-model-override-args", "config.json: rms_norm_eps",
      "--override-kv"}},
    {"rope_theta",
     {"--hf-overrides", "--json-model-override-args", "config.json: rope_parameters",
      "--rope-freq-base"}},
    {"rope_scaling",
     {"--hf-overrides", "--json-model-override-args", "config.json: rope_parameters",
      "--rope-scaling, --rope-scale, --rope-freq-scale"}},
    {"attention_softcap",
     {"--hf-overrides", "--json-model-override-args", "config.json: attn_logit_softcapping",
      "--override-kv"}},
    {"activation", {"--hf-overrides", "--json-model-override-args", "config.json: hidden_act", ""}},
    {"attention_window",
     {"--hf-overrides, --disable-sliding-window, --max-model-len",
      "--json-model-override-args, --context-length", "config.json: sliding_window",
      "--ctx-size, --swa-full, --keep"}},
    {"quantised_weights",
     {"--quantization, --dtype", "--quantization, --dtype", "quantization_config, dtype",
      "the type of the GGUF file (--model)"}},
    {"quantised_kv",
     {"--kv-cache-dtype", "--kv-cache-dtype", "cache_implementation, cache_config",
      "--cache-type-k, --cache-type-v"}},
    {"prompt",
     {"--chat-template, add_special_tokens, add_generation_prompt", "--chat-template",
      "apply_chat_template, add_special_tokens", "--chat-template, --jinja"}},
    {"other_weights",
     {"--model, --revision, --load-format, --enable-lora",
      "--model-path, --revision, --load-format", "from_pretrained, revision", "--model, --lora"}},
    {"other_weights_scaled",
     {"--enable-lora", "--enable-lora", "merge_and_unload of peft", "--lora, --lora-scaled"}},
    {"part_of_other_weights",
     {"--load-format, --model", "--load-format, --model-path", "from_pretrained", "--model"}},
};

}  // namespace

std::string EngineOptions(const std::string& engine, const std::string& cause) {
  const Engine column = EngineOf(engine);
  if (column == kOther) return "";
  std::vector<std::string> names;
  for (const std::string& one : std::vector<std::string>(absl::StrSplit(cause, '+'))) {
    const auto* const row = std::ranges::find(kOptions, one, &OptionsOfCause::cause);
    if (row == std::end(kOptions) || row->names[column].empty()) continue;
    names.emplace_back(row->names[column]);
  }
  return absl::StrJoin(names, "; ");
}

}  // namespace tandem::drift
