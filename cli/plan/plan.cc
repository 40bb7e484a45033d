// tandem plan: what an algorithm's processes hold in memory, and whether that fits.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "cli/io/shared_flags.h"
#include "cli/io/subcommand.h"
#include "cli/plan/placement.h"
#include "cli/run_file/run_file.h"
#include "common/base/exit_codes.h"
#include "common/base/status_macros.h"
#include "common/hub/resolve.h"
#include "common/model/model_config.h"
#include "common/options/command_line.h"
#include "common/process/memory.h"
#include "common/tensor/instruction_set.h"
#include "trainer/critic/scored_model.h"
#include "trainer/presets.h"
#include "trainer/supervised/supervised_options.h"

namespace tandem::cli {
namespace {

struct PlanFlags {
  std::string run_file;
  std::string algorithm, model, memory;
  std::vector<std::string> sets;
  int64_t gpus = 0;   // 0: the devices that the options name
  int64_t ranks = 0;  // 0: of the run file, or half of the GPUs
  int64_t prompt_tokens = 256;
  JsonFlags json;
};

bool IsSupervised(const std::string& algorithm) {
  return algorithm == "sft" || algorithm == "preferences" || algorithm == "reward_model";
}

// Bytes of one GPU, or without GPUs of the machine.
absl::StatusOr<int64_t> MemoryOf(const PlanFlags& flags, bool on_gpus) {
  if (!flags.memory.empty()) return plan::ParseBytes(flags.memory);
  if (on_gpus) return plan::ParseBytes("80G");
  return AvailableMemoryBytes().value_or(std::numeric_limits<int64_t>::max());
}

// The config.json of a model, by its directory or its name on the Hub; nothing else is read.
absl::StatusOr<ModelConfig> ConfigOf(const std::string& model) {
  TANDEM_ASSIGN_OR_RETURN(const hub::Resolved found, hub::ResolveModel(model));
  return ReadModelConfig(found.path);
}

// Rows of groups or examples of `tokens` tokens, `targets` of them with log-probs, `count` in all:
// as many in a row as microbatch_tokens allows, at least one, and no more than there are.
void SetRows(plan::RunShape& run, int64_t tokens, int64_t targets, int64_t count,
             int64_t microbatch_tokens) {
  const int64_t in_row =
      std::clamp<int64_t>(microbatch_tokens / tokens, 1, std::max<int64_t>(1, count));
  run.trainer.row_tokens = in_row * tokens;
  run.trainer.row_targets = in_row * targets;
  run.least_row_tokens = tokens;
}

absl::StatusOr<plan::RunShape> RlShape(const PlanFlags& flags) {
  std::vector<std::string> sets;
  if (!flags.model.empty()) {
    sets = {"trainer.model=" + flags.model, "server.model=" + flags.model};
  }
  if (flags.gpus > 0) sets.insert(sets.end(), {"trainer.device=cuda", "server.engine.device=cuda"});
  if (flags.run_file.empty()) {
    sets.insert(sets.end(), {"trainer.preset=" + flags.algorithm, "trainer.data.train=-"});
  }
  sets.insert(sets.end(), flags.sets.begin(), flags.sets.end());
  TANDEM_ASSIGN_OR_RETURN(const auto file, flags.run_file.empty()
                                               ? RunFile::LoadTexts({}, sets)
                                               : RunFile::Load(flags.run_file, sets));
  const trainer::TrainerOptions& options = file->trainer();
  const trainer::TrainStepOptions& step = options.learner.step;
  plan::RunShape run = {.algorithm = options.preset.empty() ? "run file" : options.preset};
  plan::TrainerShape& trainer = run.trainer;
  TANDEM_ASSIGN_OR_RETURN(trainer.policy, ConfigOf(options.model));
  trainer.file_dtype = trainer.policy.checkpoint_dtype;
  trainer.has_reference = step.loss.kl_coefficient > 0 || options.learner.measure_reference_kl;
  trainer.lora = options.learner.lora;
  if (NeedsCritic(options.advantage.kind) &&
      step.critic.backbone == trainer::CriticBackbone::kOwn) {
    trainer.critic = trainer.policy;
    if (!step.critic.model.empty()) {
      TANDEM_ASSIGN_OR_RETURN(const hub::Resolved critic, hub::ResolveModel(step.critic.model));
      TANDEM_ASSIGN_OR_RETURN(trainer.critic, tandem::trainer::ReadTrunkConfig(critic.path));
    }
  }
  trainer.dtype = options.learner.dtype;
  trainer.device = options.learner.device;
  trainer.checkpoint_activations = options.learner.checkpoint_activations;
  trainer.shard_parameters = options.ranks.shard_parameters;
  trainer.ranks = file->launch().num_ranks;
  run.servers = file->launch().num_servers;
  if (flags.gpus > 0 && flags.run_file.empty()) {
    trainer.ranks = std::max<int64_t>(1, flags.gpus / 2);
    run.servers = std::max<int64_t>(1, flags.gpus - trainer.ranks);
  }
  if (flags.ranks > 0) trainer.ranks = flags.ranks;
  if (flags.gpus > 0) {
    run.one_gpu = flags.gpus == 1;
    if (run.one_gpu && trainer.ranks + run.servers > 2) {
      return InvalidArgument("--gpus 1 holds one trainer rank and one server, and there are ",
                             trainer.ranks, " and ", run.servers);
    }
    if (!run.one_gpu && flags.ranks > 0)
      run.servers = std::max<int64_t>(0, flags.gpus - flags.ranks);
    if (!run.one_gpu && (run.servers < 1 || trainer.ranks + run.servers > flags.gpus)) {
      return InvalidArgument("--gpus ", flags.gpus, " are too few for ", trainer.ranks,
                             " trainer ranks and ", std::max<int64_t>(1, run.servers), " servers");
    }
  }
  plan::ServerShape server = {.engine = file->server().engine};
  TANDEM_ASSIGN_OR_RETURN(server.config, ConfigOf(file->server().model));
  server.file_dtype = server.config.checkpoint_dtype;
  if (server.engine.device == Device::kCpu && server.engine.kv_capacity_tokens == 0) {
    server.engine.kv_capacity_tokens = 32768;  // KvCapacityTokens
  }
  server.takes_adapters = trainer.lora.enabled() && trainer.lora.push == LoraPush::kAdapters;
  trainer.push_dtype = server.engine.weight_dtype();
  run.server = server;
  const int64_t completions = options.completions_per_prompt * LongestCompletion(options);
  const int64_t group = flags.prompt_tokens + completions;
  trainer.batch_tokens = options.prompts_per_step * group;
  const int64_t parts = std::max<int64_t>(1, step.num_minibatches * trainer.ranks);
  SetRows(run, group, completions, (options.prompts_per_step + parts - 1) / parts,
          step.microbatch_tokens);
  return run;
}

absl::StatusOr<plan::RunShape> SupervisedShape(const PlanFlags& flags) {
  trainer::SupervisedOptions options;
  int64_t completion_tokens = 256;
  OptionBinder binder;
  BindOptions(binder, options);
  binder.Integer("completion_tokens", &completion_tokens, {.min = 1}, "tokens", "of an answer");
  if (flags.gpus > 0) options.device = Device::kCuda;
  for (const std::string& set : flags.sets) TANDEM_RETURN_IF_ERROR(binder.Set(set));
  plan::RunShape run = {.algorithm = flags.algorithm};
  plan::TrainerShape& trainer = run.trainer;
  TANDEM_ASSIGN_OR_RETURN(trainer.policy, ConfigOf(flags.model));
  trainer.file_dtype = trainer.policy.checkpoint_dtype;
  if (flags.algorithm == "reward_model") {
    trainer.over_vocabulary = false;
    trainer.policy.tie_word_embeddings = true;  // it has no head over the vocabulary
  }
  trainer.scores_first = flags.algorithm == "preferences";  // by the reference policy
  trainer.ranks = std::max<int64_t>({1, flags.gpus, flags.ranks});
  trainer.shard_parameters = options.shard_parameters;
  trainer.dtype = options.dtype;
  trainer.device = options.device;
  trainer.checkpoint_activations = options.checkpoint_activations;
  const int64_t answers = flags.algorithm == "sft" ? 1 : 2;  // a pair has the prompt once
  const int64_t example = flags.prompt_tokens + answers * completion_tokens;
  trainer.batch_tokens = std::min<int64_t>(options.batch, 256) * example;
  SetRows(run, example, answers * completion_tokens, options.batch / trainer.ranks,
          options.microbatch_tokens);
  return run;
}

absl::Status Plan(PlanFlags flags) {
  if (flags.algorithm == "dpo") flags.algorithm = "preferences";
  const bool supervised = IsSupervised(flags.algorithm);
  if (flags.run_file.empty() == (flags.algorithm.empty() || flags.model.empty())) {
    return absl::InvalidArgumentError(
        "want either a run file, or --algorithm and --model (a directory; its config.json is "
        "read)");
  }
  if (!flags.algorithm.empty() && !supervised && !trainer::FindPreset(flags.algorithm).ok()) {
    return InvalidArgument("--algorithm ", flags.algorithm, ": there are ", trainer::PresetNames(),
                           ", sft, preferences (dpo), reward_model");
  }
  TANDEM_ASSIGN_OR_RETURN(plan::RunShape run, supervised ? SupervisedShape(flags) : RlShape(flags));
  run.trainer.fast_bf16 = SupportedInstructionSets().back() == InstructionSet::kAvx512Bf16;
  const bool on_gpus = run.trainer.device == Device::kCuda;
  TANDEM_ASSIGN_OR_RETURN(run.memory_bytes, MemoryOf(flags, on_gpus));
  return PrintResult(flags.json, plan::ToText(run), plan::ToJson(run));
}

}  // namespace

void AddPlanCommand(CLI::App& app, Action& chosen) {
  auto flags = std::make_shared<PlanFlags>();
  CLI::App* sub = app.add_subcommand("plan", "What a run holds in memory, and whether it fits");
  sub->add_option("config", flags->run_file, "run file; or --algorithm and --model");
  sub->add_option("--algorithm", flags->algorithm,
                  absl::StrCat("a preset (", trainer::PresetNames(),
                               "), sft, preferences (dpo) or reward_model"));
  sub->add_option("--model", flags->model, "directory with config.json, or a name on the Hub");
  sub->add_option("--gpus", flags->gpus,
                  "GPUs, half of them for trainer ranks; default: the devices that the options "
                  "name, which is the CPU")
      ->check(CLI::Range(1, 1 << 16));
  sub->add_option("--ranks", flags->ranks, "trainer ranks among them")
      ->check(CLI::Range(1, 1 << 16));
  sub->add_option("--memory", flags->memory,
                  "of one GPU: 80G is 80 GiB, 80GB is 80 * 10^9 bytes (default: 80G); without GPUs "
                  "of the machine (default: what is free)");
  AddPositive(sub, "--prompt-tokens", flags->prompt_tokens, "tokens of a prompt");
  AddRunSetFlag(
      sub, flags->sets,
      "the preset or the file; of sft and its like their own options, and completion_tokens");
  AddJsonFlags(sub, &flags->json);
  EndHelp(*sub,
          "Sums of the arrays that the code allocates (docs/memory.md), GiB in the table and bytes "
          "in --json.\nRows are planned as long as microbatch_tokens allows, with every completion "
          "at its limit.",
          "tandem plan --algorithm ppo --model MODEL --gpus 8 --memory 80G");
  SetAction(*sub, chosen, [flags] { return FinishUsage(Plan(*flags)); });
}

}  // namespace tandem::cli
