#include "rollout_server/groups/model_engine.h"

#include <optional>
#include <thread>
#include <utility>

#include "common/base/status_macros.h"
#include "common/weights/digest.h"

namespace tandem::rollout {
namespace {

class ModelEngine : public StepEngine {
 public:
  explicit ModelEngine(std::unique_ptr<Engine> engine) : engine_(std::move(engine)) {}

  absl::Status Validate(const GroupRequest& request) const override {
    return engine_->Validate(request);
  }
  absl::Status Add(GroupRequest request) override { return engine_->Add(std::move(request)); }
  void PutLast(GroupKey key) override { engine_->PutLast(key); }
  bool Abort(GroupKey key) override { return engine_->Abort(key); }
  std::vector<EngineEvent> StopEarly(GroupKey key) override { return engine_->StopEarly(key); }
  bool HasWork() const override { return engine_->HasWork(); }
  absl::StatusOr<std::vector<EngineEvent>> Step() override { return engine_->Step(); }
  absl::StatusOr<std::unique_ptr<StagedWeights>> Stage(
      std::vector<HostTensor> tensors) const override {
    return engine_->Stage(std::move(tensors));
  }
  std::optional<Device> arrival_memory() const override { return engine_->arrival_memory(); }
  absl::StatusOr<std::unique_ptr<ArrivingWeights>> Arrive() const override {
    return engine_->Arrive();
  }
  std::vector<GroupKey> Install(std::unique_ptr<StagedWeights> staged,
                                WeightVersion version) override {
    return engine_->Install(std::move(staged), version);
  }
  void HoldAdmissions(bool hold) override { engine_->HoldAdmissions(hold); }
  InFlight in_flight() const override { return engine_->in_flight(); }
  absl::StatusOr<std::unique_ptr<ScoreRun>> StartScore(std::vector<ScoreSequence> sequences,
                                                       const ScoreOptions& options) override {
    return engine_->StartScore(std::move(sequences), options);
  }
  WeightVersion live_version() const override { return engine_->live_version(); }
  EngineStats Stats() const override { return engine_->Stats(); }

 private:
  const std::unique_ptr<Engine> engine_;
};

}  // namespace

absl::StatusOr<LoadedEngine> LoadModelEngine(const std::string& directory,
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
  return LoadedEngine{std::make_unique<ModelEngine>(std::move(engine)), std::move(model)};
}

}  // namespace tandem::rollout
