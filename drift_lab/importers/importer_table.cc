#include "drift_lab/importers/importer_table.h"

#include <algorithm>
#include <array>
#include <initializer_list>

#include "drift_lab/importers/item_fields.h"
#include "drift_lab/importers/layouts/engine_answers.h"
#include "drift_lab/importers/layouts/training_dumps.h"
#include "nlohmann/json.hpp"

namespace tandem::drift {
namespace {

using nlohmann::json;

bool HasAll(const json& item, std::initializer_list<const char*> fields) {
  return item.is_object() &&
         std::ranges::all_of(fields, [&](const char* field) { return item.contains(field); });
}

// The answer of an item that may have the request beside it.
const json& ResponseOf(const json& item) {
  const json* response = item.is_object() ? FindField(item, "response") : nullptr;
  return response != nullptr && response->is_object() ? *response : item;
}

bool LooksLikeNemoRl(const json& item) {
  return HasAll(item, {"generation_logprobs", "prev_logprobs", "token_loss_mask"});
}
bool LooksLikePrimeRl(const json& item) {
  return HasAll(item, {"inference_logprobs", "trainer_logprobs"});
}
bool LooksLikeOpenInstruct(const json& item) {
  return HasAll(item, {"prompt_tokens", "response_tokens"}) ||
         HasAll(item, {"run_name", "git_commit", "model_name"});
}
bool LooksLikeSample(const json& item) {
  return HasAll(item, {"tokens", "response_length"}) ||
         HasAll(item, {"tokens", "response_lengths"});
}
bool LooksLikeSlime(const json& item) {
  const json* samples = item.is_object() ? FindField(item, "samples") : nullptr;
  return LooksLikeSample(item) || (samples != nullptr && samples->is_array() && !samples->empty() &&
                                   LooksLikeSample(samples->front()));
}
bool LooksLikeVerl(const json& item) { return HasAll(item, {"input", "output", "score", "step"}); }
bool LooksLikeAreal(const json& item) {
  return HasAll(item, {"task_id", "prompt_len", "prompt", "completion"});
}
bool LooksLikeTrl(const json& item) {
  return HasAll(item, {"step", "prompt", "completion", "advantage"});
}
bool LooksLikeNothing(const json&) { return false; }
bool LooksLikeSglang(const json& item) { return HasAll(ResponseOf(item), {"meta_info"}); }
bool LooksLikeChoices(const json& item) { return HasAll(ResponseOf(item), {"choices"}); }
bool LooksLikeVllm(const json& item) {
  return LooksLikeChoices(item) || HasAll(ResponseOf(item), {"outputs", "prompt_token_ids"});
}
bool LooksLikeLlamaCpp(const json& item) {
  return LooksLikeChoices(item) || HasAll(ResponseOf(item), {"completion_probabilities"}) ||
         HasAll(ResponseOf(item), {"generation_settings", "tokens_predicted"});
}

// In the order of the members: name, help, expected, looks_like, describe, add, instead.
constexpr std::array kImporters = {
    Importer{"nemo-rl", "train_data_step{N}.jsonl of NeMo-RL",
             "generation_logprobs, prev_logprobs and token_loss_mask", LooksLikeNemoRl,
             DescribeNemoRl, AddNemoRl, ""},
    Importer{"prime-rl", "token_exports/step_N/rank_R.jsonl of prime-rl",
             "inference_logprobs and trainer_logprobs", LooksLikePrimeRl, DescribePrimeRl,
             AddPrimeRl, ""},
    Importer{"verl", "no file of verl's has log-probs as text: names the exporter and the hook",
             "input, output, score and step", LooksLikeVerl, nullptr, nullptr,
             "python/tandem_rl/export/verl.py converts gen_batch.dp and tq_batch.pt where verl is "
             "installed; verl_hook.py beside it makes the trainer write records"},
    Importer{"slime", "samples of slime and miles as JSON, and miles' dashboard_columns/*.parquet",
             "tokens and response_length", LooksLikeSlime, DescribeSlime, AddSlime,
             "python/tandem_rl/export/slime.py converts --save-debug-rollout-data and "
             "--save-debug-train-data files where slime or miles is installed"},
    Importer{"skyrl", "pickles only: names the exporter", "nothing that is not pickled",
             LooksLikeNothing, nullptr, nullptr,
             "python/tandem_rl/export/skyrl.py converts dumped_data/*.pkl of "
             "trainer.dump_data_batch where SkyRL is installed"},
    Importer{"areal", "texts only: names the hook", "task_id, prompt_len, prompt and completion",
             LooksLikeAreal, nullptr, nullptr,
             "python/tandem_rl/export/areal_hook.py makes AReaL's trainer write records"},
    Importer{"trl", "texts only: names the callback", "step, prompt, completion and advantage",
             LooksLikeTrl, nullptr, nullptr,
             "python/tandem_rl/export/trl_callback.py makes TRL's GRPOTrainer write records"},
    Importer{"open-instruct", "{run}_rollouts_*.jsonl of open-instruct (--save_traces)",
             "prompt_tokens and response_tokens", LooksLikeOpenInstruct, DescribeOpenInstruct,
             AddOpenInstruct, ""},
    Importer{"vllm",
             "answers of /v1/completions, /v1/chat/completions and /inference/v1/generate, and "
             "RequestOutput as JSON",
             "choices, or outputs and prompt_token_ids", LooksLikeVllm, DescribeVllm, AddVllm, ""},
    Importer{"sglang", "answers of /generate with return_logprob", "meta_info", LooksLikeSglang,
             DescribeSglang, AddSglang, ""},
    Importer{"llama.cpp", "answers of the server's /completion with n_probs",
             "completion_probabilities", LooksLikeLlamaCpp, DescribeLlamaCpp, AddLlamaCpp, ""},
    Importer{"openai", "answers in OpenAI's form that have token ids beside the log-probs",
             "choices", LooksLikeChoices, DescribeOpenAi, AddOpenAi, ""},
    Importer{"jsonl", "anybody's JSON lines, Parquet or safetensors, with --map FIELD=their.field",
             "token_ids", LooksLikeNothing, nullptr, nullptr, ""}};

// By fields that no other has. `openai` and `vllm` answer alike, and the first that fits is named.
constexpr std::array kByContent = {"nemo-rl", "prime-rl", "slime", "open-instruct",
                                   "sglang",  "openai",   "vllm",  "llama.cpp",
                                   "verl",    "areal",    "trl"};

}  // namespace

std::span<const Importer> Importers() { return kImporters; }

const Importer* FindImporter(std::string_view name) {
  const auto found = std::ranges::find_if(
      kImporters, [&](const Importer& importer) { return importer.name == name; });
  return found == kImporters.end() ? nullptr : &*found;
}

const Importer* LooksLike(const json& item) {
  for (const char* name : kByContent) {
    const Importer* importer = FindImporter(name);
    if (importer->looks_like(item)) return importer;
  }
  return nullptr;
}

}  // namespace tandem::drift
