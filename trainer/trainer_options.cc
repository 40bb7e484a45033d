#include "trainer/trainer_options.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/status_macros.h"
#include "common/observe/observe_server.h"
#include "trainer/presets.h"
#include "trainer/rollouts/server_lookup.h"

namespace tandem::trainer {
namespace {

void BindLog(OptionBinder& binder, log::LogOptions& options) {
  binder.Choice("level", &options.level,
                {{"debug", log::Level::kDebug},
                 {"info", log::Level::kInfo},
                 {"warning", log::Level::kWarning},
                 {"error", log::Level::kError}},
                "least important lines to keep");
  binder.Choice("format", &options.format,
                {{"text", log::Format::kText}, {"json", log::Format::kJson}}, "of a line");
  binder.Text("file", &options.file, "also write here; empty: stderr only");
}

void BindRun(OptionBinder& binder, TrainerOptions& options) {
  binder.Text("preset", &options.preset,
              absl::StrCat("an algorithm by name, as settings that the file may set otherwise "
                           "(`tandem run --explain-preset NAME`): ",
                           PresetNames(), "; empty: none"));
  binder.Text(
      "model", &options.model,
      "model to start from: a Hugging Face directory, or a name on the Hub that tandem fetch "
      "got (docs/models.md)");
  binder.TextList("servers", &options.servers,
                  "the rollout servers: HOST:PORT, or dns:NAME:PORT for one at each address of a "
                  "name, looked up again as the run goes on; or vllm://HOST:PORT, a server of vLLM "
                  "(docs/foreign_training.md)");
  binder.Text("tls", &options.tls.directory,
              "directory of tls.crt, tls.key and ca.crt for calls to servers; empty: plaintext");
  binder.Text("token_file", &options.tls.token_file,
              "bearer token that the servers ask for: the first line of this file; empty: none");
  binder.Integer("seed", &options.seed, {.min = 0}, "", "of prompt order and every draw");
  binder.Flag("deterministic", &options.deterministic,
              "same seed, same ids, log-probs and losses: groups of a step are admitted together");
  binder.Integer("steps", &options.steps, {.min = 0}, "train steps", "of the whole run");
  binder.Integer("prompts_per_step", &options.prompts_per_step, {.min = 1, .max = 1 << 16},
                 "groups", "one per prompt");
  binder.Integer("completions_per_prompt", &options.completions_per_prompt, {.min = 1, .max = 1024},
                 "completions", "of a group");
  binder.Integer("max_staleness", &options.max_staleness, {.min = 0, .max = 64}, "versions",
                 "how much older than the trained weights sampled ones may be; 0: synchronous");
  binder.Integer(
      "max_skipped_steps", &options.max_skipped_steps, {.min = 0}, "steps",
      "without a finite loss or a group to train, in a row; then the run ends. A step whose "
      "groups were all dropped for equal rewards is not one");
  binder.Text(
      "observe_listen", &options.observe_listen,
      "HOST:PORT of probes, /metrics and /logs over plain HTTP, read-only, on each host's first "
      "rank; empty: off");
  binder.Number("liveness_seconds", &options.liveness_seconds, {.min = 1, .max = 604800}, "s",
                "/livez fails when neither the loop nor a train step moved for this long");
  binder.Text(
      "trace_file", &options.trace_file,
      "rank 0 appends spans of steps, group calls and pushes here as OTLP JSON lines; empty: off");
  binder.Text("history", &options.history,
              "directory for a record of what became of each group and weight version "
              "(docs/run_directory.md); empty: off");
}

absl::Status CheckAdvantage(const TrainerOptions& options) {
  TANDEM_RETURN_IF_ERROR(CheckOptions(options.group_size, options.completions_per_prompt));
  TANDEM_RETURN_IF_ERROR(CheckOptions(
      options.advantage, SmallestGroup(options.group_size, options.completions_per_prompt)));
  const bool needs_correct = options.advantage.kind == AdvantageKind::kPassAtK ||
                             options.advantage.kind == AdvantageKind::kCorrectOnly;
  if (needs_correct && !options.reward.weights.empty() && Judges(options.reward).empty()) {
    return InvalidArgument(
        "advantage.kind pass_at_k and correct_only need to know what is correct, and no component "
        "of reward.weights or reward.gold says it: add one such as number_answer, gsm8k, regex, "
        "subprocess, http, judge or a function in Python");
  }
  const PolicyLossOptions& loss = options.learner.step.loss;
  if (MakesPairs(options.advantage.kind) != ReadsPairs(loss)) {
    return InvalidArgument(
        "advantage.kind best_worst makes the pairs that loss.kind preference reads: set both, as "
        "trainer.preset online_dpo does, or neither");
  }
  const bool critic = NeedsCritic(options.advantage.kind);
  if (critic && loss.kl_coefficient > 0 && loss.kl_place == KlPlace::kReward) {
    return InvalidArgument(
        "loss.kl_place reward takes the KL off a completion as a whole, and the critic of this "
        "advantage.kind reads a reward per token: set loss.kl_place token_reward");
  }
  return absl::OkStatus();
}

absl::Status CheckDynamicSampling(const TrainerOptions& options) {
  const DynamicSamplingOptions& sampling = options.dynamic_sampling;
  if (options.deterministic && sampling.oversampling > 1) {
    return InvalidArgument(
        "trainer.dynamic_sampling.oversampling above 1 takes the groups that end first, and "
        "trainer.deterministic must not depend on that: set one of them back");
  }
  if (sampling.refill && sampling.max_factor < sampling.oversampling) {
    return InvalidArgument("trainer.dynamic_sampling.max_factor ", sampling.max_factor,
                           " is below its oversampling ", sampling.oversampling);
  }
  return absl::OkStatus();
}

// A budget that nothing is measured against would never act.
absl::Status CheckKlBudget(const TrainerOptions& options) {
  const AlertOptions& alerts = options.alerts;
  if (alerts.on_kl != OnKl::kWarn && alerts.kl_budget == 0) {
    return InvalidArgument(
        "trainer.alerts.on_kl stop and roll_back need trainer.alerts.kl_budget above 0, the KL at "
        "which the run ends");
  }
  if (alerts.on_kl == OnKl::kRollBack && options.checkpoint.every == 0) {
    return InvalidArgument(
        "trainer.alerts.on_kl roll_back needs trainer.checkpoint.every above 0: the run goes back "
        "to one of its checkpoints");
  }
  if (alerts.on_kl == OnKl::kRollBack && options.push.hold_back_versions > 0) {
    return InvalidArgument(
        "trainer.alerts.on_kl roll_back and trainer.push.hold_back_versions exclude each other: "
        "the "
        "weights that the run goes back to would not reach the servers");
  }
  const bool measured =
      options.learner.measure_reference_kl || NeedsReference(options.learner.step.loss);
  if (alerts.kl_budget == 0 || measured) return absl::OkStatus();
  return InvalidArgument(
      "trainer.alerts.kl_budget is ", alerts.kl_budget,
      " and no KL to a reference policy is measured: set trainer.measure_reference_kl true, which "
      "costs a copy of the starting weights and a forward pass of each step, or "
      "trainer.loss.kl_coefficient above 0; or leave the budget at 0");
}

absl::Status CheckEnvironmentFits(const TrainerOptions& options) {
  TANDEM_RETURN_IF_ERROR(CheckOptions(options.environment));
  const bool counts = std::ranges::count(ComputedComponents(options.reward),
                                         std::string(kEnvironmentComponent)) > 0;
  if (counts && !GivesRewards(options.environment)) {
    return InvalidArgument(
        "the component environment of trainer.reward is what an environment says, and ",
        HasEnvironment(options.environment)
            ? "trainer.environment.tools say nothing of that kind: reward the answer, by a "
              "component such as number_answer or a function in Python"
            : "there is none: set trainer.environment");
  }
  if (!HasEnvironment(options.environment)) return absl::OkStatus();
  if (options.group_size.kind == GroupSizeKind::kSequential) {
    return InvalidArgument(
        "trainer.group_size.kind sequential asks for a group in two parts, which "
        "trainer.environment does not play: set it to fixed or adaptive");
  }
  if (options.deterministic && options.learner.numerics == Numerics::kFast) {
    return InvalidArgument(
        "trainer.deterministic with trainer.environment needs trainer.numerics invariant or exact: "
        "with fast, the log-probs depend on which completions wait for the environment");
  }
  if (options.environment.step_timeout_seconds > options.client.call_timeout_seconds) {
    return InvalidArgument(
        "trainer.environment.step_timeout_seconds ", options.environment.step_timeout_seconds,
        " is over trainer.client.call_timeout_seconds ", options.client.call_timeout_seconds,
        ", in which all turns of a completion must end: raise the latter");
  }
  const int64_t longest = LongestCompletion(options);
  if (longest < options.sampling.max_new_tokens) {
    return InvalidArgument("trainer.environment.max_completion_tokens ", longest,
                           " is below trainer.sampling.max_new_tokens ",
                           options.sampling.max_new_tokens, ", the limit of a single turn");
  }
  return absl::OkStatus();
}

// What a foreign server does not give cannot be asked of it.
absl::Status CheckForeign(const TrainerOptions& options) {
  const auto foreign = std::ranges::find_if(
      options.servers, [](const std::string& entry) { return !ForeignHostPort(entry).empty(); });
  if (foreign == options.servers.end()) return absl::OkStatus();
  const TrainSamplingOptions& sampling = options.sampling;
  const bool filters =
      sampling.top_k > 0 || sampling.min_p > 0 || (sampling.top_p > 0 && sampling.top_p < 1);
  if (filters) {
    return InvalidArgument(
        *foreign,
        " does not say which ids its filters left, and the trainer could not re-score "
        "over them: set trainer.sampling.top_k 0, top_p 1 and min_p 0");
  }
  if (HasEnvironment(options.environment)) {
    return InvalidArgument(*foreign,
                           " cannot go on with a completion behind ids that it is given: "
                           "trainer.environment needs servers of Tandem");
  }
  if (options.deterministic || options.learner.numerics == Numerics::kExact) {
    return InvalidArgument(*foreign,
                           " promises no bits, which trainer.deterministic and "
                           "trainer.numerics exact need: set them back");
  }
  if (options.learner.lora.enabled() && options.learner.lora.push == LoraPush::kAdapters) {
    return InvalidArgument(*foreign,
                           " takes whole weights and no adapters: set trainer.lora.push merged");
  }
  return absl::OkStatus();
}

}  // namespace

void BindOptions(OptionBinder& binder, TrainerOptions& options) {
  binder.Section("run", "where the run is kept", [&](OptionBinder& b) {
    b.Text("name", &options.run_name, "directory of the run under `out`");
    b.Text("out", &options.out, "directory of all runs");
  });
  BindRun(binder, options);
  binder.Section("sampling", "completions to train on (stage 1)", options.sampling);
  binder.Section("data", "prompts (stage 1)", options.data);
  binder.Section("curriculum", "which prompts come next (docs/dynamic_sampling.md)",
                 options.curriculum);
  binder.Section("group_size", "completions of a group (docs/dynamic_sampling.md)",
                 options.group_size);
  binder.Section("dynamic_sampling", "groups of a step (docs/dynamic_sampling.md)",
                 options.dynamic_sampling);
  binder.Section("environment",
                 "what answers the model between turns (stages 1 to 3, docs/environments.md): "
                 "`environment: FILE.py:CLASS` for a class in Python alone",
                 options.environment);
  binder.Section("reward", "reward of a completion (stage 3)", options.reward);
  binder.Section("advantage", "advantage of a token (stages 3 and 5)", options.advantage);
  BindOptions(binder, options.learner);  // stages 4-8
  binder.Section("client", "calls to rollout servers", options.client);
  binder.Section("foreign", "servers of other engines (docs/foreign_training.md)", options.foreign);
  binder.Section("push", "weight push (stage 9)", [&](OptionBinder& b) {
    BindOptions(b, options.push);
    BindOptions(b, options.learner.cast);
  });
  binder.Section("checkpoint", "what --resume goes on from", options.checkpoint);
  binder.Section("capture", "batches for the drift lab", options.capture);
  binder.Section("probe", "a fixed set of completions that both sides score (docs/attribution.md)",
                 options.probe);
  binder.Section("split", "drift of a step in its additive parts (docs/attribution.md)",
                 options.split);
  binder.Section("eval", "held-out prompts", options.eval);
  binder.Section("alerts", "when to warn", options.alerts);
  binder.Section("ranks", "several processes of one trainer (docs/scaling.md)", options.ranks);
  binder.Section("log", "log of this process", [&](OptionBinder& b) { BindLog(b, options.log); });
}

LongestTokens LongestOf(const TrainerOptions& options) {
  LongestTokens longest = {.tokens = LongestCompletion(options)};
  if (HasEnvironment(options.environment)) {
    longest.option = options.environment.max_completion_tokens > 0
                         ? "environment.max_completion_tokens"
                         : "environment.max_turns x sampling.max_new_tokens";
  }
  return longest;
}

std::optional<rollout::v1::Turns> TurnsOf(const TrainerOptions& options) {
  if (!HasEnvironment(options.environment)) return std::nullopt;
  rollout::v1::Turns turns;
  turns.set_max_turns(static_cast<int32_t>(options.environment.max_turns));
  turns.set_max_completion_tokens(static_cast<int32_t>(LongestCompletion(options)));
  return turns;
}

void WeighRewards(TrainerOptions& options) {
  WeighPythonFunctions(options.reward);
  if (options.reward.weights_are_given || !GivesRewards(options.environment)) return;
  options.reward.weights = {{std::string(kEnvironmentComponent), 1.0}};
  options.reward.weights_are_given = true;
}

std::vector<hub::ModelOption> ModelOptions(TrainerOptions& options) {
  std::vector<hub::ModelOption> models = {
      {"trainer.model", &options.model},
      {"trainer.reference.model", &options.learner.step.reference.model},
      {"trainer.critic.model", &options.learner.step.critic.model},
      {"trainer.lora.start", &options.learner.lora.start}};
  for (std::string& path : options.reward.model.paths) {
    models.push_back({"trainer.reward.model.paths", &path});
  }
  return models;
}

absl::Status CheckOptions(const TrainerOptions& options) {
  const auto bad = [](const char* message) { return InvalidArgument(message); };
  const TrainSamplingOptions& sampling = options.sampling;
  if (options.model.empty()) return bad("trainer.model is empty: name a Hugging Face directory");
  TANDEM_RETURN_IF_ERROR(CheckOptions(options.data));
  if (!options.data.mixture.empty() && options.curriculum.kind != CurriculumKind::kNone) {
    return bad(
        "trainer.data.mixture fixes how often each data set is drawn, and so does "
        "trainer.curriculum.kind: set it to none, or name one data set in trainer.data.train");
  }
  if (!options.observe_listen.empty()) {
    TANDEM_RETURN_IF_ERROR(CheckObserveAddress("trainer.observe_listen", options.observe_listen));
  }
  if (options.servers.empty()) return bad("trainer.servers is empty: name at least one HOST:PORT");
  if (absl::Status entries = CheckServerEntries(options.servers); !entries.ok()) return entries;
  if (options.deterministic && HasNames(options.servers)) {
    return bad(
        "trainer.deterministic needs the same servers from start to end: name each by HOST:PORT in "
        "trainer.servers, not by dns:");
  }
  if (options.run_name.empty() || options.run_name.find('/') != std::string::npos) {
    return bad("trainer.run.name must be a plain directory name");
  }
  if (sampling.min_new_tokens != 0) {
    return bad(
        "trainer.sampling.min_new_tokens is refused for training: it bans stop tokens from the "
        "sampled distribution, which the trainer does not replay");
  }
  if (options.push.hold_back_versions > options.max_staleness) {
    return bad(
        "trainer.push.hold_back_versions is over trainer.max_staleness: every group would be "
        "dropped as stale");
  }
  if (options.deterministic && options.max_staleness > options.push.hold_back_versions) {
    return bad(
        "trainer.deterministic needs trainer.max_staleness 0 (or equal to "
        "trainer.push.hold_back_versions): with more, what a group is sampled from depends on "
        "timing");
  }
  if (absl::Status tls = rpc::CheckTlsOptions(options.tls, "trainer"); !tls.ok()) return tls;
  TANDEM_RETURN_IF_ERROR(CheckForeign(options));
  TANDEM_RETURN_IF_ERROR(CheckEnvironmentFits(options));
  TANDEM_RETURN_IF_ERROR(CheckAdvantage(options));
  TANDEM_RETURN_IF_ERROR(CheckDynamicSampling(options));
  TANDEM_RETURN_IF_ERROR(CheckKlBudget(options));
  TANDEM_RETURN_IF_ERROR(RewardFunction::Create(options.reward).status());  // starts nothing
  TANDEM_RETURN_IF_ERROR(CheckLora(options.learner));
  TrainStepOptions step = options.learner.step;
  int64_t& constant_length = step.loss.objective.constant_length;
  if (constant_length == 0) constant_length = LongestCompletion(options);
  return CheckOptions(step);
}

namespace {

std::string HeldOutText(const DataOptions& data) {
  if (data.eval_share > 0) return absl::StrCat("a share of ", data.eval_share, " of them");
  return data.eval.empty() ? "none" : data.eval;
}

}  // namespace

std::string DescribePlan(const TrainerOptions& options) {
  return absl::StrCat(
      "run ", options.out, "/", options.run_name, ": ", options.steps, " train steps of ",
      options.prompts_per_step, " prompts x ", options.completions_per_prompt,
      " completions of at most ", LongestCompletion(options), " tokens",
      HasEnvironment(options.environment)
          ? absl::StrCat(" in ", options.environment.max_turns, " turns")
          : "",
      "\nmodel ", options.model, "\nprompts ", absl::StrJoin(TrainPaths(options.data), ", "),
      ", held out ", HeldOutText(options.data), "\nservers ", absl::StrJoin(options.servers, ", "),
      "\n");
}

}  // namespace tandem::trainer
