#include "common/lora/lora_shape.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/status_macros.h"
#include "common/options/options.h"

namespace tandem {
namespace {

constexpr char kAllLinear[] = "all-linear";
constexpr char kHead[] = "lm_head";
constexpr char kWeight[] = ".weight";

std::string ModuleOf(const std::string& weight) {
  return weight.substr(0, weight.size() - (sizeof(kWeight) - 1));
}

// Does a target name this module? As in PEFT: by its whole name or the end of it, from a dot on.
bool Names(const std::string& target, const std::string& module) {
  return module == target || module.ends_with("." + target);
}

// "q_proj" of "model.layers.0.self_attn.q_proj".
std::string LastPart(const std::string& module) { return module.substr(module.rfind('.') + 1); }

bool IsLinear(const TensorSpec& spec) {
  return spec.shape.size() == 2 && spec.name.ends_with(kWeight) &&
         (spec.name.starts_with("model.layers.") || spec.name == std::string(kHead) + kWeight);
}

}  // namespace

float LoraOptions::scaling() const {
  const double by = rslora ? std::sqrt(static_cast<double>(rank)) : static_cast<double>(rank);
  return static_cast<float>(alpha / by);
}

void BindOptions(OptionBinder& binder, LoraOptions& options) {
  binder.Integer("rank", &options.rank, {.min = 0, .max = 4096}, "",
                 "of the adapters; 0: none, all weights are trained");
  binder.Number("alpha", &options.alpha, {.min = 0, .exclusive_min = true}, "",
                "adapters count alpha / rank times");
  binder.OneOrMoreTexts("targets", &options.targets,
                        "all-linear (of the layers), or names of linear layers: q_proj, down_proj, "
                        "lm_head ...");
  binder.Number("dropout", &options.dropout, {.min = 0, .max = 1, .exclusive_max = true}, "",
                "share of an adapter's inputs that an update leaves out");
  binder.Flag("rslora", &options.rslora, "alpha / sqrt(rank) in place of alpha / rank");
  binder.Choice(
      "push", &options.push, {{"adapters", LoraPush::kAdapters}, {"merged", LoraPush::kMerged}},
      "adapters: servers get the adapters and merge them into the model that they loaded; "
      "merged: they get all weights, as from a run without adapters");
  binder.Text("start", &options.start,
              "PEFT directory with the adapters to start from; empty: fresh ones, which change "
              "nothing yet");
}

std::string LoraModule::a_name() const {
  return absl::StrCat("base_model.model.", ModuleOf(weight), ".lora_A.weight");
}

std::string LoraModule::b_name() const {
  return absl::StrCat("base_model.model.", ModuleOf(weight), ".lora_B.weight");
}

absl::StatusOr<std::vector<LoraModule>> LoraModules(const ModelConfig& config,
                                                    const LoraOptions& options) {
  std::vector<LoraModule> modules;
  std::set<std::string> names, found;  // of all linear layers; targets
  for (const TensorSpec& spec : ModelTensors(config, DType::kF32)) {
    if (!IsLinear(spec)) continue;
    const std::string module = ModuleOf(spec.name);
    names.insert(LastPart(module));
    bool is_target = false;
    for (const std::string& target : options.targets) {
      const bool named = target == kAllLinear ? module != kHead : Names(target, module);
      if (named) found.insert(target);
      is_target = is_target || named;
    }
    if (is_target) modules.push_back({spec.name, spec.shape[0], spec.shape[1]});
  }
  for (const std::string& target : options.targets) {
    if (found.contains(target)) continue;
    if (target == kHead && config.tie_word_embeddings) {
      return InvalidArgument(
          "lm_head, and the model's head is its embedding: an adapter of one would change both. "
          "Leave it out");
    }
    return InvalidArgument("'", target, "' is none of the model's linear layers: all-linear, ",
                           absl::StrJoin(names, ", "));
  }
  if (modules.empty()) return InvalidArgument("no linear layer is named");
  return modules;
}

absl::StatusOr<std::vector<LoraModule>> ModulesOf(const std::vector<TensorSpec>& adapter,
                                                  int64_t rank,
                                                  const std::vector<TensorSpec>& model) {
  if (rank < 1 || adapter.empty() || adapter.size() % 2 != 0) {
    return InvalidArgument(adapter.size(), " tensors of an adapter of rank ", rank,
                           ": want A and B of each layer, and a rank of at least 1");
  }
  std::vector<LoraModule> modules;
  std::set<std::string> seen;
  for (size_t i = 0; i < adapter.size(); i += 2) {
    const auto of = std::ranges::find_if(model, [&](const TensorSpec& spec) {
      return IsLinear(spec) && LoraModule{spec.name, 0, 0}.a_name() == adapter[i].name;
    });
    if (of == model.end()) {
      return InvalidArgument(adapter[i].name, " is of no linear layer of the served model");
    }
    const LoraModule module = {of->name, of->shape[0], of->shape[1]};
    const std::vector<TensorSpec> want = LoraTensors({module}, rank, DType::kF32);
    for (size_t k = 0; k < 2; ++k) {
      if (adapter[i + k] == want[k]) continue;
      return InvalidArgument(adapter[i + k].ToString(), " where ", want[k].ToString(),
                             " must stand");
    }
    if (!seen.insert(module.weight).second) {
      return InvalidArgument(adapter[i].name, " comes twice");
    }
    modules.push_back(module);
  }
  return modules;
}

std::vector<TensorSpec> LoraTensors(const std::vector<LoraModule>& modules, int64_t rank,
                                    DType dtype) {
  std::vector<TensorSpec> specs;
  for (const LoraModule& module : modules) {
    specs.push_back({module.a_name(), dtype, {rank, module.in}});
    specs.push_back({module.b_name(), dtype, {module.out, rank}});
  }
  return specs;
}

}  // namespace tandem
