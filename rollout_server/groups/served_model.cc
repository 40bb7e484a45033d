#include "rollout_server/groups/served_model.h"

#include <cstdint>
#include <memory>
#include <utility>

#include "common/base/status_macros.h"
#include "common/lora/adapted_model.h"
#include "common/model/formats/plan_text.h"
#include "common/model/formats/stored_tensors.h"
#include "common/model/model_config.h"
#include "common/model/quantisation_plan.h"
#include "common/tensor/nearest_cast.h"
#include "common/weights/digest.h"

namespace tandem::rollout {

absl::StatusOr<LoadedEngine> LoadEngine(const std::string& directory,
                                        const EngineOptions& options) {
  EngineOptions pushed_to = options;
  pushed_to.reserve_for_push = true;
  TANDEM_ASSIGN_OR_RETURN(std::unique_ptr<Engine> engine, Engine::Create(directory, pushed_to));
  TANDEM_ASSIGN_OR_RETURN(const QuantisationPlan plan,
                          MakeQuantisationPlan(engine->config(), options.quantised));
  ServedModel model{directory,         engine->config(), options,
                    engine->kernels(), PlanText(plan),   engine->tokenizer().hash()};
  model.tensors = ModelTensors(model.config, engine->weight_dtype());
  if (plan.quantises() && !options.faults.weights()) {
    model.stored = StoredTensors(model.config, engine->weight_dtype(), plan);
  }
  model.digests = DigestTensors(engine->initial_tensors());
  model.served_digests = engine->served_digests();
  engine->DropInitialTensors();
  TANDEM_ASSIGN_OR_RETURN(model.limits, engine->MeasureLimits());
  return LoadedEngine{std::move(engine), std::move(model)};
}

absl::StatusOr<std::vector<HostTensor>> ReadWeightsAs(const ServedModel& model,
                                                      const std::string& directory) {
  const DType dtype = model.tensors.front().dtype;
  TANDEM_ASSIGN_OR_RETURN(std::vector<HostTensor> read, ReadAdaptedTensors(directory, dtype));
  TANDEM_ASSIGN_OR_RETURN(std::vector<HostTensor> weights,
                          MatchModelTensors(model.config, std::move(read)));
  for (HostTensor& tensor : weights) {
    TANDEM_ASSIGN_OR_RETURN(tensor, CastNearest(tensor, dtype));
    tensor = Aligned(std::move(tensor));
  }
  return weights;
}

absl::StatusOr<std::vector<HostTensor>> ReadServedWeights(const ServedModel& model) {
  return ReadWeightsAs(model, model.path);
}

}  // namespace tandem::rollout
