#include "rollout_server/groups/served_model.h"

#include <utility>

#include "common/base/status_macros.h"
#include "common/model/quantisation_plan.h"
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
  model.digests = DigestTensors(engine->initial_tensors());
  model.served_digests = engine->served_digests();
  engine->DropInitialTensors();
  TANDEM_ASSIGN_OR_RETURN(model.limits, engine->MeasureLimits());
  return LoadedEngine{std::move(engine), std::move(model)};
}

}  // namespace tandem::rollout
