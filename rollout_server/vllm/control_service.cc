#include <grpcpp/grpcpp.h>

#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/base/version.h"
#include "common/rpc/credentials.h"
#include "common/rpc/grpc_call.h"
#include "proto/vllm/control.grpc.pb.h"
#include "rollout_server/engine/schedule/kv_block_pool.h"
#include "rollout_server/vllm/control_requests.h"
#include "rollout_server/vllm/vllm_services.h"

namespace tandem::rollout {
namespace {

constexpr char kBackend[] = "directory";

class Control : public vllm::Control::CallbackService {
 public:
  Control(const ServiceParts& parts, const ModelFacts* facts, WeightControl* control)
      : parts_(parts), facts_(facts), control_(control) {}

  using Context = grpc::CallbackServerContext;
  using Reactor = grpc::ServerUnaryReactor;

  Reactor* GetServerInfo(Context* context, const vllm::GetServerInfoRequest*,
                         vllm::ServerInfo* info) override {
    const EngineStats stats = parts_.engine->stats();
    const EngineOptions& options = parts_.model->options;
    info->set_engine_version(absl::StrCat("tandem ", std::string(ProjectVersion())));
    info->set_api_version("1");
    info->set_max_model_len(static_cast<uint32_t>(facts_->context_tokens));
    info->set_kv_block_size(static_cast<uint32_t>(KvBlockPool::kBlockTokens));
    info->set_total_kv_blocks(
        static_cast<uint64_t>(stats.kv_capacity_tokens / KvBlockPool::kBlockTokens));
    info->set_max_running_requests(static_cast<uint64_t>(options.max_batch_sequences));
    info->set_max_batched_tokens(static_cast<uint64_t>(options.max_step_tokens));
    info->set_max_loras(static_cast<uint32_t>(facts_->adapters.size()));
    vllm::ParallelismInfo* const sizes = info->mutable_parallelism();
    sizes->set_tensor_parallel_size(1);
    sizes->set_pipeline_parallel_size(1);
    sizes->set_data_parallel_size(1);
    sizes->set_decode_context_parallel_size(1);
    sizes->set_world_size(1);
    sizes->set_data_parallel_size_local(1);
    info->mutable_rl_capabilities()->set_weight_transfer_enabled(true);
    info->mutable_rl_capabilities()->set_weight_transfer_backend(kBackend);
    return Answer(context, absl::OkStatus());
  }

  Reactor* GetModelInfo(Context* context, const vllm::GetModelInfoRequest*,
                        vllm::ModelInfo* info) override {
    info->set_model_id(facts_->name);
    info->set_served_model_name(facts_->name);
    info->set_supports_text_input(true);
    info->set_supports_token_ids_input(true);
    info->set_supports_lora(!facts_->adapters.empty());
    return Answer(context, absl::OkStatus());
  }

  Reactor* ListLoras(Context* context, const vllm::ListLorasRequest*,
                     vllm::ListLorasResponse* response) override {
    for (const auto& [name, directory] : parts_.model->options.lora_modules) {
      vllm::LoraAdapter* const adapter = response->add_adapters();
      adapter->set_lora_id(response->adapters_size());
      adapter->set_lora_name(name);
      adapter->set_source_path(directory);
    }
    return Answer(context, absl::OkStatus());
  }

  Reactor* PauseGeneration(Context* context, const vllm::PauseGenerationRequest* request,
                           vllm::PauseGenerationResponse*) override {
    const absl::StatusOr<PauseHow> how =
        PauseHowNamed(request->mode() == vllm::PAUSE_MODE_KEEP   ? "keep"
                      : request->mode() == vllm::PAUSE_MODE_WAIT ? "wait"
                                                                 : "abort");
    if (!how.ok()) return Answer(context, how.status());
    return WhenDone(context, [&](const std::string& who, WeightControl::Done done) {
      control_->Pause(who, *how, std::move(done));
    });
  }

  Reactor* ResumeGeneration(Context* context, const vllm::ResumeGenerationRequest*,
                            vllm::ResumeGenerationResponse*) override {
    return WhenDone(context, [&](const std::string& who, WeightControl::Done done) {
      control_->Resume(who, std::move(done));
    });
  }

  Reactor* IsPaused(Context* context, const vllm::IsPausedRequest*,
                    vllm::IsPausedResponse* response) override {
    response->set_paused(control_->paused());
    return Answer(context, absl::OkStatus());
  }

  Reactor* IsSleeping(Context* context, const vllm::IsSleepingRequest*,
                      vllm::IsSleepingResponse*) override {
    return Answer(context, absl::OkStatus());  // never
  }

  Reactor* InitWeightTransferEngine(Context* context,
                                    const vllm::InitWeightTransferEngineRequest* request,
                                    vllm::InitWeightTransferEngineResponse*) override {
    return Answer(context, CheckBackend(request->init_info_json()));
  }

  Reactor* StartWeightUpdate(Context* context, const vllm::StartWeightUpdateRequest*,
                             vllm::StartWeightUpdateResponse*) override {
    return WhenDone(context, [&](const std::string& who, WeightControl::Done done) {
      control_->StartUpdate(who, std::move(done));
    });
  }

  Reactor* UpdateWeights(Context* context, const vllm::UpdateWeightsRequest* request,
                         vllm::UpdateWeightsResponse*) override {
    const absl::StatusOr<Json> json = ParseBody(request->update_info_json());
    if (!json.ok()) return Answer(context, json.status());
    const absl::StatusOr<WeightControl::Update> update = ReadUpdate(*json);
    if (!update.ok()) return Answer(context, update.status());
    return WhenDone(context, [&](const std::string& who, WeightControl::Done done) {
      control_->UpdateWeights(who, *update, std::move(done));
    });
  }

  Reactor* FinishWeightUpdate(Context* context, const vllm::FinishWeightUpdateRequest* request,
                              vllm::FinishWeightUpdateResponse*) override {
    std::optional<std::string> name;
    if (request->has_weight_version()) name = request->weight_version();
    const auto version = VersionNamed(name);
    if (!version.ok()) return Answer(context, version.status());
    return WhenDone(context, [&](const std::string& who, WeightControl::Done done) {
      control_->FinishUpdate(who, *version, std::move(done));
    });
  }

  Reactor* GetWeightVersion(Context* context, const vllm::GetWeightVersionRequest*,
                            vllm::GetWeightVersionResponse* response) override {
    response->set_weight_version(absl::StrCat(control_->live_version()));
    return Answer(context, absl::OkStatus());
  }

  // What this server does not do.

  Reactor* Shutdown(Context* context, const vllm::ShutdownRequest*,
                    vllm::ShutdownResponse*) override {
    return Never(context, "Shutdown: send the process SIGTERM");
  }
  Reactor* Abort(Context* context, const vllm::AbortRequest*, vllm::AbortResponse*) override {
    return Never(context, "Abort by request_id: cancel the call, which frees what it asked for");
  }
  Reactor* LoadLora(Context* context, const vllm::LoadLoraRequest*,
                    vllm::LoadLoraResponse*) override {
    return Never(context, "LoadLora: adapters are named at the start, server.engine.lora_modules");
  }
  Reactor* UnloadLora(Context* context, const vllm::UnloadLoraRequest*,
                      vllm::UnloadLoraResponse*) override {
    return Never(context,
                 "UnloadLora: adapters are named at the start, server.engine.lora_modules");
  }
  Reactor* Sleep(Context* context, const vllm::SleepRequest*, vllm::SleepResponse*) override {
    return Never(context, "Sleep: PauseGeneration keeps the weights and the KV cache");
  }
  Reactor* WakeUp(Context* context, const vllm::WakeUpRequest*, vllm::WakeUpResponse*) override {
    return Never(context, "WakeUp: this server never sleeps");
  }
  Reactor* UpdateWeightVersion(Context* context, const vllm::UpdateWeightVersionRequest*,
                               vllm::UpdateWeightVersionResponse*) override {
    return Never(context,
                 "UpdateWeightVersion: every token carries the version that drew it, so the live "
                 "version cannot be renamed; name it in FinishWeightUpdate");
  }

 private:
  static absl::Status CheckBackend(const std::string& text) {
    if (text.empty()) return absl::OkStatus();
    TANDEM_ASSIGN_OR_RETURN(const Json json, ParseBody(text));
    JsonFields fields(json);
    const std::string backend = fields.Text("backend").value_or(kBackend);
    TANDEM_RETURN_IF_ERROR(fields.status());
    if (backend == kBackend) return absl::OkStatus();
    return Unimplemented("backend is '", backend, "': weights come from a directory here (",
                         kBackend, ")");
  }

  static Reactor* Answer(Context* context, const absl::Status& status) {
    Reactor* const reactor = context->DefaultReactor();
    reactor->Finish(rpc::ToGrpc(status));
    return reactor;
  }

  static Reactor* Never(Context* context, const char* what) {
    return Answer(context, Unimplemented(what));
  }

  template <typename Start>
  static Reactor* WhenDone(Context* context, const Start& start) {
    Reactor* const reactor = context->DefaultReactor();
    start(rpc::IdentityOf(rpc::PeerOf(*context->auth_context())),
          [reactor](const absl::Status& status) { reactor->Finish(rpc::ToGrpc(status)); });
    return reactor;
  }

  const ServiceParts parts_;
  const ModelFacts* const facts_;
  WeightControl* const control_;
};

}  // namespace

std::unique_ptr<grpc::Service> MakeVllmControl(const ServiceParts& parts, const ModelFacts* facts,
                                               WeightControl* control) {
  return std::make_unique<Control>(parts, facts, control);
}

}  // namespace tandem::rollout
