// loss_driver: one train step over groups given as JSON, for loss_parity_test.py. Reads from stdin
//
//   {"model": DIR, "reference": DIR or null, "dtype": "fp32", "temperature": 1.0,
//    "options": YAML text of TrainStepOptions,
//    "groups": [{"prompt": [id..], "completions": [{"ids": [..], "behaviour": [..],
//                "advantage": a, "masked": false}]}],
//    "moments": FILE or null, "weights": FILE or null,
//    "lora": YAML text of LoraOptions; then the reference of "base" is the model without adapters}
//
// and writes {"metrics": {..}, "proximal": [[[..]]], "skip_reason": ".."} to stdout. With beta1 = 0
// and no clipping the first moments in FILE are the gradient itself.
#include <nlohmann/json.hpp>

#include <cstdio>
#include <iostream>
#include <string>
#include <vector>

#include "common/base/status_macros.h"
#include "common/lora/peft_files.h"
#include "common/model/model_config.h"
#include "common/model/safetensors.h"
#include "common/options/options.h"
#include "common/process/libtorch_program.h"
#include "proto/experience.pb.h"
#include "trainer/train_step.h"

namespace tandem::trainer {
namespace {

using nlohmann::json;

absl::StatusOr<std::vector<HostTensor>> ReadWeights(const ModelConfig& config,
                                                    const std::string& directory) {
  TANDEM_ASSIGN_OR_RETURN(auto tensors, ReadModelTensors(directory));
  return MatchModelTensors(config, std::move(tensors));
}

experience::v1::ScoredGroup ToGroup(const json& input, int64_t id) {
  experience::v1::ScoredGroup group;
  group.set_group_id(id);
  for (const int32_t token : input["prompt"]) group.mutable_prompt()->add_token_ids(token);
  for (const json& c : input["completions"]) {
    auto* scored = group.add_completions();
    auto* completion = scored->mutable_completion();
    completion->set_index(group.completions_size() - 1);
    for (const int32_t token : c["ids"]) {
      completion->add_token_ids(token);
      completion->add_entropies(1);
      completion->add_logprob_second_moments(1.5f);
    }
    for (const json& value : c["behaviour"]) {
      completion->add_behaviour_logprobs(value.is_null() ? std::numeric_limits<float>::quiet_NaN()
                                                         : value.get<float>());
    }
    completion->add_version_spans()->set_num_tokens(completion->token_ids_size());
    scored->set_advantage(c["advantage"].get<float>());
    scored->set_masked(c.value("masked", false));
  }
  return group;
}

absl::Status Run(const json& input) {
  TANDEM_ASSIGN_OR_RETURN(const ModelConfig config,
                          ReadModelConfig(input["model"].get<std::string>()));
  TrainStepOptions options;
  OptionBinder binder;
  BindOptions(binder, options);
  TANDEM_RETURN_IF_ERROR(binder.LoadString(input["options"].get<std::string>(), "options"));
  TrainStepSetup setup{.config = config, .temperature = input["temperature"].get<double>()};
  setup.dtype = input["dtype"] == "bf16" ? ComputeDType::kBf16 : ComputeDType::kFp32;
  TANDEM_ASSIGN_OR_RETURN(setup.weights, ReadWeights(config, input["model"]));
  if (input.contains("lora")) {
    OptionBinder lora;
    BindOptions(lora, setup.lora);
    TANDEM_RETURN_IF_ERROR(lora.LoadString(input["lora"].get<std::string>(), "lora"));
    TANDEM_ASSIGN_OR_RETURN(LoraAdapter start, ReadPeftDirectory(setup.lora.start, config));
    setup.lora_start = std::move(start.tensors);
  }
  setup.reference_is_base = input["reference"] == "base";
  if (!setup.reference_is_base && !input["reference"].is_null()) {
    TANDEM_ASSIGN_OR_RETURN(setup.reference_weights, ReadWeights(config, input["reference"]));
  }
  TANDEM_ASSIGN_OR_RETURN(auto step, TrainStep::Create(setup, options));
  std::vector<experience::v1::ScoredGroup> groups;
  for (const json& group : input["groups"]) {
    groups.push_back(ToGroup(group, static_cast<int64_t>(groups.size())));
  }
  TANDEM_ASSIGN_OR_RETURN(const StepReport report, step->Run(groups));
  if (!input["moments"].is_null()) {
    TANDEM_RETURN_IF_ERROR(WriteSafetensors(input["moments"], step->OptimizerState()));
  }
  if (!input["weights"].is_null()) {
    TANDEM_RETURN_IF_ERROR(WriteSafetensors(input["weights"], step->Masters()));
  }
  json output = {{"skip_reason", report.skip_reason}, {"proximal", report.proximal_logprobs}};
  for (const auto& [name, value] : NamedNumbers(report)) output["metrics"][name] = value;
  std::cout << output.dump() << "\n";
  return absl::OkStatus();
}

}  // namespace
}  // namespace tandem::trainer

int main(int argc, char** argv) {
  tandem::EnsurePassiveThreads(argc, argv, environ);
  const absl::Status status = tandem::trainer::Run(nlohmann::json::parse(std::cin));
  if (status.ok()) return 0;
  std::fprintf(stderr, "%s\n", status.ToString().c_str());
  return 1;
}
