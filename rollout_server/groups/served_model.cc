#include "rollout_server/groups/served_model.h"

#include <thread>
#include <utility>

#include "common/base/status_macros.h"
#include "common/weights/digest.h"

namespace tandem::rollout {

absl::StatusOr<LoadedEngine> LoadEngine(const std::string& directory,
                                        const EngineOptions& options) {
  EngineOptions pushed_to = options;
  pushed_to.reserve_for_push = true;
  TANDEM_ASSIGN_OR_RETURN(std::unique_ptr<Engine> engine, Engine::Create(directory, pushed_to));
  const ModelConfig& config = engine->config();
  ServedModel model;
  model.model_type = config.model_type;
  model.path = directory;
  model.dtype = options.dtype == ComputeDType::kBf16 ? "bf16" : "fp32";
  model.numerics = NumericsName(options.numerics);
  model.instruction_set = engine->kernels();
  model.in_flight = InFlightName(options.in_flight);
  model.injected = DescribeFaults(options.faults);
  model.vocab_size = config.vocab_size;
  model.max_context_tokens = config.max_position_embeddings;
  model.tokenizer_hash = engine->tokenizer().hash();
  model.num_threads = static_cast<int32_t>(
      options.num_threads > 0 ? options.num_threads : std::thread::hardware_concurrency());
  model.eos_token_ids = config.eos_token_ids;
  model.tensors = ModelTensors(config, engine->weight_dtype());
  model.digests = DigestTensors(engine->initial_tensors());
  engine->DropInitialTensors();
  TANDEM_ASSIGN_OR_RETURN(model.limits, engine->MeasureLimits());
  return LoadedEngine{std::move(engine), std::move(model)};
}

}  // namespace tandem::rollout
