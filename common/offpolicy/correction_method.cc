#include "common/offpolicy/correction_method.h"

#include <set>
#include <sstream>
#include <string>

#include "common/base/status_macros.h"
#include "common/offpolicy/policy_objective.h"
#include "common/options/options.h"

namespace tandem::offpolicy {
namespace {

// docs/corrections.md names the publication of each threshold.
constexpr NamedMethod kMethods[] = {
    {"off", "correction.kind=off"},
    {"tis", "correction.kind=token_tis correction.max_weight=2"},
    {"icepop", "correction.kind=token_mask correction.min_weight=0.5 correction.max_weight=5"},
    {"token_clip", "correction.kind=token_clip correction.min_weight=0.5 correction.max_weight=5"},
    {"seq_tis", "correction.kind=sequence_tis correction.max_weight=2"},
    {"mis", "correction.kind=sequence_mask correction.min_weight=0.5 correction.max_weight=2"},
    {"seq_clip", "correction.kind=sequence_clip correction.min_weight=0.5 correction.max_weight=2"},
    {"geo_tis", "correction.kind=geometric_tis correction.max_weight=2"},
    {"geo_mask",
     "correction.kind=geometric_mask correction.min_weight=0.5 correction.max_weight=2"},
    {"geo_clip",
     "correction.kind=geometric_clip correction.min_weight=0.5 correction.max_weight=2"},
    {"tis_normalised",
     "correction.kind=token_tis correction.max_weight=2 correction.batch_normalise=true"},
    {"geo_gate",
     "correction.kind=off correction.geometric_min=0.999 correction.geometric_max=1.001"},
    {"geo_gate_tis",
     "correction.kind=token_tis correction.geometric_min=0.999 correction.geometric_max=1.002"},
    {"z_gate",
     "correction.kind=token_tis correction.geometric_z=3 correction.geometric_noise=0.01"},
    {"k3_gate", "correction.kind=off correction.k3_mean_max=0.01"},
    {"trm", "correction.kind=off correction.k3_token_max=0.05 correction.k3_mean_max=0.001"},
    {"veto", "correction.kind=token_tis correction.veto_threshold=0.0001"},
    {"negative_geo_gate",
     "correction.kind=off correction.geometric_min=0.6065 correction.negative_only=true"},
    {"negative_icepop",
     "correction.kind=token_mask correction.min_weight=0.5 correction.max_weight=5 "
     "correction.negative_only=true"},
    {"bypass", "correction.mode=bypass"},
    {"aipo", "correction.mode=bypass loss.kind=cispo loss.cispo_max=2"},
    {"cispo", "loss.kind=cispo loss.cispo_max=5"},
    {"topr", "correction.mode=bypass loss.kind=topr"},
    {"gspo", "loss.kind=gspo loss.normalisation=sequence"},
    {"sapo", "loss.kind=sapo loss.normalisation=sequence"},
    {"vespo", "correction.mode=bypass loss.kind=vespo"},
    {"m2po", "correction.mode=bypass loss.kind=m2po"},
    {"m2po_clip", "correction.mode=bypass loss.kind=m2po_clip"},
    {"dppo_tv", "correction.mode=bypass loss.kind=dppo_tv"},
    {"dppo_kl", "correction.mode=bypass loss.kind=dppo_kl"},
};

absl::Status CheckLengths(const MethodInputs& in) {
  // ComputeCorrection checks the other lengths.
  if (in.target_logprobs.size() == in.mask.size() && in.advantages.size() == in.mask.size()) {
    return absl::OkStatus();
  }
  return InvalidArgument("method: target_logprobs has ", in.target_logprobs.size(),
                         " elements, advantages ", in.advantages.size(), " and mask ",
                         in.mask.size());
}

int64_t CountCompletions(const MethodInputs& in) {
  std::set<int64_t> numbers;
  for (size_t t = 0; t < in.mask.size(); ++t) {
    if (in.mask[t]) numbers.insert(in.completion[t]);
  }
  return static_cast<int64_t>(numbers.size());
}

}  // namespace

std::span<const NamedMethod> NamedMethods() { return kMethods; }

absl::StatusOr<MethodOptions> ParseMethod(std::string_view settings) {
  MethodOptions options;
  OptionBinder binder;
  binder.Section("correction", "", options.correction);
  binder.Section("loss", "", options.objective);
  std::istringstream words{std::string(settings)};
  for (std::string setting; words >> setting;) TANDEM_RETURN_IF_ERROR(binder.Set(setting));
  TANDEM_RETURN_IF_ERROR(CheckOptions(options.correction, options.objective));
  if (options.objective.kind == ObjectiveKind::kPreference) {
    return InvalidArgument(
        "loss.kind preference is a loss of pairs, and a method is evaluated token by token: choose "
        "another loss.kind");
  }
  return options;
}

absl::StatusOr<MethodOptions> FindMethod(std::string_view name) {
  std::string names;
  for (const NamedMethod& method : kMethods) {
    if (method.name == name) return ParseMethod(method.settings);
    names += (names.empty() ? "" : ", ") + std::string(method.name);
  }
  return NotFound("no method '", name, "'; there are ", names);
}

absl::StatusOr<MethodResult> EvaluateMethod(const MethodInputs& inputs,
                                            const MethodOptions& options) {
  TANDEM_RETURN_IF_ERROR(CheckLengths(inputs));
  MethodResult result;
  TANDEM_ASSIGN_OR_RETURN(result.correction,
                          ComputeCorrection({.proximal_logprobs = inputs.proximal_logprobs,
                                             .behaviour_logprobs = inputs.behaviour_logprobs,
                                             .mask = inputs.mask,
                                             .completion = inputs.completion,
                                             .advantages = inputs.advantages},
                                            options.correction));
  const Correction& correction = result.correction;
  result.objective = ComputeObjective({.target_logprobs = inputs.target_logprobs,
                                       .centre_logprobs = correction.centre_logprobs,
                                       .weight = correction.weight,
                                       .advantages = inputs.advantages,
                                       .kept = correction.kept,
                                       .completion = inputs.completion},
                                      options.objective);
  const bool all = options.correction.denominator == DenominatorKind::kAll;
  const LossScales scales =
      ComputeLossScales(all ? inputs.mask : std::span<const uint8_t>(correction.kept),
                        inputs.completion, CountCompletions(inputs), options.objective);
  result.denominator = scales.denominator;
  result.coefficient.resize(inputs.mask.size());
  for (size_t t = 0; t < inputs.mask.size(); ++t) {
    result.coefficient[t] = result.objective.slope[t] * scales.scale[t];
    result.loss += result.objective.value[t] * scales.scale[t];
  }
  result.loss = result.denominator == 0 ? 0 : result.loss / result.denominator;
  return result;
}

}  // namespace tandem::offpolicy
