#include "drift_lab/importers/importer_table.h"

#include <algorithm>
#include <array>
#include <initializer_list>

#include "drift_lab/importers/engine_answers.h"
#include "drift_lab/importers/item_fields.h"
#include "drift_lab/importers/training_dumps.h"
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

constexpr std::array kImporters = {
    Importer{.name = "nemo-rl",
             .help = "train_data_step{N}.jsonl of NeMo-RL",
             .expected = "generation_logprobs, prev_logprobs and token_loss_mask",
             .looks_like = LooksLikeNemoRl,
             .describe = DescribeNemoRl,
             .add = AddNemoRl,
             .instead = ""},
    Importer{.name = "prime-rl",
             .help = "token_exports/step_N/rank_R.jsonl of prime-rl",
             .expected = "inference_logprobs and trainer_logprobs",
             .looks_like = LooksLikePrimeRl,
             .describe = DescribePrimeRl,
             .add = AddPrimeRl,
             .instead = ""},
    Importer{.name = "verl",
             .help = "no file of verl's has log-probs as text: names the exporter and the hook",
             .expected = "input, output, score and step",
             .looks_like = LooksLikeVerl,
             .instead =
                 "python/tandem_rl/export/verl.py converts gen_batch.dp and tq_batch.pt where "
                 "verl is installed; verl_hook.py beside it makes the trainer write records"},
    Importer{.name = "slime",
             .help = "samples of slime and miles as JSON, and miles' dashboard_columns/*.parquet",
             .expected = "tokens and response_length",
             .looks_like = LooksLikeSlime,
             .describe = DescribeSlime,
             .add = AddSlime,
             .instead = "python/tandem_rl/export/slime.py converts --save-debug-rollout-data and "
                        "--save-debug-train-data files where slime or miles is installed"},
    Importer{.name = "skyrl",
             .help = "pickles only: names the exporter",
             .expected = "nothing that is not pickled",
             .looks_like = LooksLikeNothing,
             .instead = "python/tandem_rl/export/skyrl.py converts dumped_data/*.pkl of "
                        "trainer.dump_data_batch where SkyRL is installed"},
    Importer{
        .name = "areal",
        .help = "texts only: names the hook",
        .expected = "task_id, prompt_len, prompt and completion",
        .looks_like = LooksLikeAreal,
        .instead = "python/tandem_rl/export/areal_hook.py makes AReaL's trainer write records"},
    Importer{.name = "trl",
             .help = "texts only: names the callback",
             .expected = "step, prompt, completion and advantage",
             .looks_like = LooksLikeTrl,
             .instead = "python/tandem_rl/export/trl_callback.py makes TRL's GRPOTrainer write "
                        "records"},
    Importer{.name = "open-instruct",
             .help = "{run}_rollouts_*.jsonl of open-instruct (--save_traces)",
             .expected = "prompt_tokens and response_tokens",
             .looks_like = LooksLikeOpenInstruct,
             .describe = DescribeOpenInstruct,
             .add = AddOpenInstruct,
             .instead = ""},
    Importer{.name = "vllm",
             .help = "answers of /v1/completions, /v1/chat/completions and /inference/v1/generate, "
                     "and RequestOutput as JSON",
             .expected = "choices, or outputs and prompt_token_ids",
             .looks_like = LooksLikeVllm,
             .describe = DescribeVllm,
             .add = AddVllm,
             .instead = ""},
    Importer{.name = "sglang",
             .help = "answers of /generate with return_logprob",
             .expected = "meta_info",
             .looks_like = LooksLikeSglang,
             .describe = DescribeSglang,
             .add = AddSglang,
             .instead = ""},
    Importer{.name = "llama.cpp",
             .help = "answers of the server's /completion with n_probs",
             .expected = "completion_probabilities",
             .looks_like = LooksLikeLlamaCpp,
             .describe = DescribeLlamaCpp,
             .add = AddLlamaCpp,
             .instead = ""},
    Importer{.name = "openai",
             .help = "answers in OpenAI's form that have token ids beside the log-probs",
             .expected = "choices",
             .looks_like = LooksLikeChoices,
             .describe = DescribeOpenAi,
             .add = AddOpenAi,
             .instead = ""},
    Importer{.name = "jsonl",
             .help = "anybody's JSON lines, Parquet or safetensors, with --map FIELD=their.field",
             .expected = "token_ids",
             .looks_like = LooksLikeNothing,
             .instead = ""}};

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
