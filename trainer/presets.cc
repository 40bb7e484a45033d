#include "trainer/presets.h"

#include <algorithm>
#include <vector>

#include "absl/strings/str_join.h"
#include "common/base/status_macros.h"

namespace tandem::trainer {
namespace {

constexpr PresetSetting kGrpo[] = {
    {"advantage.kind", "group_norm", "rewards of a group, centred and divided by their deviation"},
    {"loss.kind", "clip", "PPO's ratio"},
    {"loss.clip_low", "0.2", "TRL, verl"},
    {"loss.clip_high", "0.2", "TRL, verl"},
    {"loss.normalisation", "sequence", "1 / |o_i| of the paper, equation 3"},
    {"loss.kl_coefficient", "0.04", "the paper, section 4.2"},
    {"loss.kl_place", "loss", "the paper, equation 3"},
    {"loss.kl_estimator", "k3", "the paper, equation 4"},
};
constexpr PresetSetting kDrGrpo[] = {
    {"advantage.kind", "mean_only",
     "no division by the deviation: no bias for easy and hard prompts"},
    {"loss.kind", "clip", "PPO's ratio"},
    {"loss.normalisation", "constant", "no division by the length: no bias for long wrong answers"},
    {"loss.kl_coefficient", "0", "the paper, section 3"},
};
constexpr PresetSetting kDapo[] = {
    {"advantage.kind", "group_norm", "as GRPO"},
    {"advantage.drop_zero_variance", "true", "groups of equal rewards have no gradient"},
    {"dynamic_sampling.refill", "true", "others are sampled in their place: section 3.2"},
    {"loss.kind", "clip", "PPO's ratio"},
    {"loss.clip_low", "0.2", "the paper, section 4.1"},
    {"loss.clip_high", "0.28", "clip-higher: the paper, section 3.1"},
    {"loss.normalisation", "token", "token-level loss: the paper, section 3.3"},
    {"loss.kl_coefficient", "0", "the paper, section 2.3"},
};
constexpr PresetSetting kRloo[] = {
    {"advantage.kind", "leave_one_out", "the mean reward of the other completions as baseline"},
    {"loss.kind", "policy_gradient", "REINFORCE, no ratio"},
    {"loss.normalisation", "constant", "a completion is one action: its log-probs add up"},
    {"loss.constant_length", "1", "with it the loss is a mean over completions"},
    {"loss.kl_coefficient", "0.05", "TRL"},
    {"loss.kl_place", "reward", "k1 in the reward of the completion"},
};
constexpr PresetSetting kRemax[] = {
    {"advantage.kind", "greedy_baseline", "the reward of a greedy completion as baseline"},
    {"loss.kind", "policy_gradient", "REINFORCE, no ratio"},
    {"loss.normalisation", "constant", "a completion is one action"},
    {"loss.constant_length", "1", "with it the loss is a mean over completions"},
    {"loss.kl_coefficient", "0.05", "the authors' repository"},
    {"loss.kl_place", "token_reward", "the authors' repository: KL of each token"},
};
constexpr PresetSetting kReinforcePp[] = {
    {"advantage.kind", "none", "no baseline of the group"},
    {"advantage.whiten", "true", "normalised over the whole batch: the paper, equation 4"},
    {"loss.kind", "clip", "PPO's ratio"},
    {"loss.kl_coefficient", "0.01", "the authors' scripts in OpenRLHF"},
    {"loss.kl_place", "token_reward", "k1 per token, as return from each token on"},
};
constexpr PresetSetting kReinforcePpBaseline[] = {
    {"advantage.kind", "mean_only", "less the mean of the group"},
    {"advantage.whiten", "true", "normalised over the whole batch"},
    {"loss.kind", "clip", "PPO's ratio"},
    {"loss.kl_coefficient", "0.001", "the authors' scripts in OpenRLHF"},
    {"loss.kl_place", "loss", "the paper, section 3.2"},
    {"loss.kl_estimator", "k2", "the paper: the gradient of the reverse KL"},
};
constexpr PresetSetting kGspo[] = {
    {"advantage.kind", "group_norm", "as GRPO"},
    {"loss.kind", "gspo", "the ratio of the whole completion"},
    {"loss.gspo_clip_low", "0.0003", "the paper, section 5.1"},
    {"loss.gspo_clip_high", "0.0004", "the paper, section 5.1"},
    {"loss.normalisation", "sequence", "the paper, equation 5"},
};
constexpr PresetSetting kCispo[] = {
    {"advantage.kind", "group_norm", "as GRPO"},
    {"loss.kind", "cispo", "clips the weight and keeps every token's gradient"},
    {"loss.cispo_max", "5", "open-source reproductions; the paper tunes it and gives no number"},
    {"loss.normalisation", "token", "the paper, equation 4"},
};
constexpr PresetSetting kGpg[] = {
    {"advantage.kind", "mean_only", "less the mean of the group; F_norm = 1"},
    {"advantage.drop_zero_variance", "true", "its alpha: the mean is over groups with a gradient"},
    {"loss.kind", "policy_gradient", "no ratio, no clip"},
    {"loss.normalisation", "token", "the authors' repository"},
    {"loss.kl_coefficient", "0", "the paper, section 3"},
};
constexpr PresetSetting kOpo[] = {
    {"advantage.kind", "optimal_baseline", "the mean reward, weighted by length"},
    {"loss.kind", "policy_gradient", "exact on-policy training: one update per step"},
    {"loss.normalisation", "token", "the paper, algorithm 1"},
    {"loss.kl_coefficient", "0", "the paper, section 3"},
};
constexpr PresetSetting kPassAtK[] = {
    {"advantage.kind", "pass_at_k", "of the best of k, by the analytical form of the paper"},
    {"advantage.pass_k", "4", "the paper, section 2"},
    {"loss.kind", "clip", "PPO's ratio"},
    {"loss.clip_high", "0.28", "as DAPO, on which the paper builds"},
    {"loss.normalisation", "token", "as DAPO"},
};
constexpr PresetSetting kRaft[] = {
    {"advantage.kind", "best_of_n", "the best completion of a group is imitated"},
    {"loss.kind", "policy_gradient", "with advantage 1: the cross entropy"},
    {"loss.normalisation", "token", "as supervised training"},
    {"correction.kind", "off", "imitation is of the completion, whoever drew it"},
};
constexpr PresetSetting kExpertIteration[] = {
    {"advantage.kind", "correct_only", "each correct completion is imitated"},
    {"loss.kind", "policy_gradient", "with advantage 1: the cross entropy"},
    {"loss.normalisation", "token", "as supervised training"},
    {"correction.kind", "off", "imitation is of the completion, whoever drew it"},
};
constexpr PresetSetting kOnlineDpo[] = {
    {"completions_per_prompt", "2", "the paper draws two"},
    {"advantage.kind", "best_worst", "the better and the worse completion of a prompt as a pair"},
    {"loss.kind", "preference", "a loss of pairs"},
    {"loss.preference.kind", "dpo", "the paper; ipo and dpo_hinge are its other losses"},
    {"loss.preference.beta", "0.1", "TRL"},
    {"loss.kl_coefficient", "0", "beta holds the policy to its reference"},
    {"reference.kind", "frozen", "the paper: the policy it starts from"},
    {"correction.kind", "sequence_tis", "a pair counts the product of its two ratios, truncated"},
};
constexpr PresetSetting kIterativeDpo[] = {
    {"completions_per_prompt", "8", "RLHFlow (arXiv 2405.07863): the best and the worst of 8"},
    {"advantage.kind", "best_worst", "as online DPO"},
    {"loss.kind", "preference", "as online DPO"},
    {"loss.preference.kind", "dpo", "the paper has it beside its pairwise cringe loss"},
    {"loss.preference.beta", "0.1", "TRL"},
    {"loss.kl_coefficient", "0", "as online DPO"},
    {"reference.kind", "reset", "the reference of an iteration is the policy that began it"},
    {"reference.reset_every", "20",
     "train steps of an iteration; the papers' are a pass over data"},
    {"correction.kind", "sequence_tis", "as online DPO"},
};
constexpr PresetSetting kPpo[] = {
    {"advantage.kind", "gae", "generalised advantage estimation"},
    {"advantage.gamma", "1", "InstructGPT, appendix C.4"},
    {"advantage.lambda", "0.95", "InstructGPT, TRL"},
    {"advantage.whiten", "true", "TRL, InstructGPT's code"},
    {"num_epochs", "1", "InstructGPT, appendix C.4"},
    {"num_minibatches", "4", "TRL; InstructGPT has 8"},
    {"loss.kind", "clip", "PPO's ratio"},
    {"loss.clip_low", "0.2", "InstructGPT, TRL"},
    {"loss.clip_high", "0.2", "InstructGPT, TRL"},
    {"loss.kl_coefficient", "0.02", "InstructGPT, appendix C.4"},
    {"loss.kl_place", "token_reward", "InstructGPT, equation 2"},
    {"critic.value_clip", "0.2", "InstructGPT, TRL"},
    {"critic.optimizer.learning_rate", "0.000009", "InstructGPT, appendix C.4"},
};
constexpr PresetSetting kPpoPenalty[] = {
    {"advantage.kind", "gae", "generalised advantage estimation"},
    {"advantage.whiten", "true", "as PPO"},
    {"num_epochs", "4", "TRL"},
    {"loss.kind", "penalty", "KL(proximal || target) in place of the clip: the paper, section 4"},
    {"loss.penalty_target", "0.01", "the middle value of the paper's table 1"},
    {"loss.kl_coefficient", "0.02", "as PPO"},
    {"loss.kl_place", "token_reward", "as PPO"},
};
constexpr PresetSetting kVapo[] = {
    {"advantage.kind", "gae", "generalised advantage estimation"},
    {"advantage.critic_lambda", "1", "decoupled: the critic learns from whole returns"},
    {"advantage.length_adaptive_alpha", "0.05", "the paper, equation 7"},
    {"advantage.whiten", "true", "as PPO"},
    {"num_minibatches", "4", "as PPO"},
    {"loss.kind", "clip", "PPO's ratio"},
    {"loss.clip_low", "0.2", "the paper, section 5.1"},
    {"loss.clip_high", "0.28", "the paper, section 5.1"},
    {"loss.normalisation", "token", "the paper, section 4.2"},
    {"critic.warmup_steps", "50", "value pretraining: the paper, section 5.1"},
    {"critic.optimizer.learning_rate", "0.000002", "the paper, section 5.1"},
};
constexpr PresetSetting kVtrace[] = {
    {"advantage.kind", "vtrace", "targets corrected by the pair's own behaviour log-probs"},
    {"advantage.lambda", "1", "IMPALA"},
    {"advantage.max_rho", "1", "IMPALA"},
    {"advantage.max_c", "1", "IMPALA"},
    {"advantage.whiten", "true", "as PPO"},
    {"loss.kind", "policy_gradient", "IMPALA has no ratio of its own"},
    {"correction.kind", "token_tis", "rho of the policy gradient"},
    {"correction.max_weight", "1", "rho-bar of the policy gradient"},
    {"critic.value_clip", "0", "IMPALA"},
};

constexpr Preset kPresets[] = {
    {"grpo", "Group relative policy optimization", "Shao et al. 2024, arXiv 2402.03300",
     "a reference policy", "verifiable rewards, no critic", kGrpo},
    {"dr_grpo", "GRPO done right", "Liu et al. 2025, arXiv 2503.20783", "",
     "as GRPO, where lengths grow without reason", kDrGrpo},
    {"dapo", "Decoupled clip and dynamic sampling", "Yu et al. 2025, arXiv 2503.14476",
     "add reward part length_penalty for its overlong punishment",
     "long reasoning, where entropy falls too fast", kDapo},
    {"gspo", "Group sequence policy optimization", "Zheng et al. 2025, arXiv 2507.18071", "",
     "mixtures of experts, long completions", kGspo},
    {"cispo", "Clipped importance sampling", "MiniMax 2025, arXiv 2506.13585", "",
     "several updates per step, rare tokens that matter", kCispo},
    {"rloo", "REINFORCE leave-one-out", "Ahmadian et al. 2024, arXiv 2402.14740",
     "a reference policy", "a learned reward, few completions per prompt", kRloo},
    {"remax", "REINFORCE with a greedy baseline", "Li et al. 2023, arXiv 2310.10505",
     "a reference policy; one greedy completion more per prompt",
     "one completion per prompt is enough", kRemax},
    {"reinforce_pp", "REINFORCE++", "Hu et al. 2025, arXiv 2501.03262", "a reference policy",
     "a learned reward, one completion per prompt", kReinforcePp},
    {"reinforce_pp_baseline", "REINFORCE++ with the group's mean",
     "Hu et al. 2025, arXiv 2501.03262", "a reference policy", "verifiable rewards with groups",
     kReinforcePpBaseline},
    {"gpg", "Group policy gradient", "Chu et al. 2025, arXiv 2504.02546", "",
     "the plainest gradient that works", kGpg},
    {"opo", "On-policy RL with the optimal baseline", "Hao et al. 2025, arXiv 2505.23585", "",
     "exact on-policy training, lengths that differ", kOpo},
    {"pass_at_k", "Pass@k training", "Chen et al. 2025, arXiv 2508.10751", "",
     "where several tries count, for exploration", kPassAtK},
    {"raft", "Best-of-n distillation", "Dong et al. 2023, arXiv 2304.06767", "",
     "a first policy from a reward, imitation only", kRaft},
    {"expert_iteration", "Rejection sampling", "Yuan et al. 2023, arXiv 2308.01825", "",
     "verifiable rewards, imitation only", kExpertIteration},
    {"online_dpo", "Online direct preference optimization", "Guo et al. 2024, arXiv 2402.04792",
     "a reference policy, unless loss.preference.kind is cpo or simpo",
     "a judge or a reward that ranks better than it scores", kOnlineDpo},
    {"iterative_dpo", "Iterative direct preference optimization",
     "Xu et al. 2023, arXiv 2312.16682", "a reference policy",
     "as online DPO, when the policy shall leave its start behind", kIterativeDpo},
    {"ppo", "PPO as InstructGPT runs it", "Ouyang et al. 2022, arXiv 2203.02155",
     "a reference policy and a critic", "dense or learned rewards, long completions", kPpo},
    {"ppo_penalty", "PPO with an adaptive KL penalty", "Schulman et al. 2017, arXiv 1707.06347",
     "a reference policy and a critic", "where a clip is too blunt", kPpoPenalty},
    {"vapo", "Value-augmented PPO", "Yue et al. 2025, arXiv 2504.05118",
     "a critic; its loss on positive examples is left out", "long reasoning with a critic", kVapo},
    {"vtrace", "V-trace actor-critic", "Espeholt et al. 2018, arXiv 1802.01561", "a critic",
     "data that is stale, or an engine with another distribution", kVtrace},
};

std::string Assignment(const PresetSetting& setting, std::string_view between) {
  return std::string(setting.name).append(between).append(setting.value);
}

}  // namespace

std::span<const Preset> Presets() { return kPresets; }

std::string PresetNames() {
  std::vector<std::string> names;
  for (const Preset& preset : kPresets) names.emplace_back(preset.name);
  return absl::StrJoin(names, ", ");
}

absl::StatusOr<const Preset*> FindPreset(std::string_view name) {
  const auto found = std::ranges::find(kPresets, name, &Preset::name);
  if (found != std::end(kPresets)) return &*found;
  return NotFound("no preset '", name, "'; there are ", PresetNames());
}

absl::Status LoadOverPreset(OptionBinder& binder, const std::string& preset,
                            const LoadOptions& load_file, const LoadOptions& load_sets) {
  TANDEM_RETURN_IF_ERROR(load_file());
  const std::string of_file = preset;
  TANDEM_RETURN_IF_ERROR(load_sets());
  if (preset.empty()) return absl::OkStatus();
  const auto found = FindPreset(preset);
  if (!found.ok()) return InvalidArgument("trainer.preset: ", found.status().message());
  const bool over_file = preset != of_file;
  if (over_file) TANDEM_RETURN_IF_ERROR(load_file());
  for (const PresetSetting& setting : (*found)->settings) {
    TANDEM_RETURN_IF_ERROR(binder.Set("trainer." + Assignment(setting, "=")));
  }
  if (!over_file) TANDEM_RETURN_IF_ERROR(load_file());
  return load_sets();
}

std::string Explain(const Preset& preset) {
  std::string text;
  const auto line = [&](std::string_view head, std::string_view rest) {
    text.append(head).append(rest).append("\n");
  };
  line(std::string(preset.name) + ": ", preset.title);
  line("  source  ", preset.source);
  line("  for     ", preset.when);
  if (!preset.needs.empty()) line("  needs   ", preset.needs);
  line("",
       "\nIt stands for these options of section trainer, each of which a run file may set "
       "otherwise:");
  size_t width = 0;
  for (const PresetSetting& setting : preset.settings) {
    width = std::max(width, Assignment(setting, ": ").size());
  }
  for (const PresetSetting& setting : preset.settings) {
    std::string assignment = "  " + Assignment(setting, ": ");
    assignment.resize(width + 4, ' ');
    line(assignment, setting.why);
  }
  return text;
}

}  // namespace tandem::trainer
