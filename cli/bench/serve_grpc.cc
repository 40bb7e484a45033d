#include <grpcpp/grpcpp.h>

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "cli/bench/serve_load.h"
#include "common/base/status_macros.h"
#include "common/rpc/grpc_call.h"
#include "proto/rollout.grpc.pb.h"

namespace tandem::cli {
namespace {

constexpr int kMaxMessageBytes = 256 << 20;
constexpr double kInfoSeconds = 5;

rollout::v1::GenerateGroupRequest RequestToWire(const ServeLoad& load, const ServeRequest& asked) {
  rollout::v1::GenerateGroupRequest request;
  // Far from the ids of a training run, which start at 0.
  request.set_group_id((int64_t{1} << 40) + static_cast<int64_t>(load.seed << 20) + asked.number);
  request.mutable_prompt_token_ids()->Add(asked.prompt.begin(), asked.prompt.end());
  request.set_num_completions(static_cast<int32_t>(load.group_size));
  rollout::v1::SamplingParams* const sampling = request.mutable_sampling();
  sampling->set_temperature(1);
  sampling->set_max_new_tokens(static_cast<int32_t>(load.new_tokens));
  sampling->set_seed(asked.seed);
  sampling->set_ignore_eos(true);
  return request;
}

class GrpcTarget : public ServeTarget {
 public:
  explicit GrpcTarget(const ServeLoad& load) : load_(load) {
    grpc::ChannelArguments arguments;
    arguments.SetMaxReceiveMessageSize(kMaxMessageBytes);
    stub_ = rollout::v1::RolloutService::NewStub(
        grpc::CreateCustomChannel(load.address, load.caller.credentials(), arguments));
  }

  absl::StatusOr<Limits> Reach() override {
    rollout::v1::GetInfoResponse info;
    grpc::ClientContext context;
    rpc::SetDeadline(context, absl::Seconds(kInfoSeconds));
    TANDEM_RETURN_IF_ERROR(rpc::FromGrpc(stub_->GetInfo(&context, {}, &info), load_.address));
    return Limits{info.vocab_size(), info.max_context_tokens()};
  }

  ServedGroup Ask(const ServeRequest& asked) override {
    ServedGroup group;
    grpc::ClientContext context;
    rpc::SetDeadline(context, absl::Seconds(load_.timeout_seconds));
    const auto reader = stub_->GenerateGroup(&context, RequestToWire(load_, asked));
    rollout::v1::GenerateGroupResponse response;
    while (reader->Read(&response)) {
      if (response.has_done()) {
        group.queue_ms = response.done().queue_ms();
        group.prefill_ms = response.done().prefill_ms();
      }
      if (!response.has_completion()) continue;
      const rollout::v1::Completion& completion = response.completion();
      const int tokens = completion.token_ids_size();
      group.tokens += tokens;
      group.longest_gap_ms.push_back(completion.longest_gap_ms());
      if (tokens > 1) group.between_tokens_ms.push_back(completion.decode_ms() / (tokens - 1));
    }
    const grpc::Status status = reader->Finish();
    group.code = absl::StatusCodeToString(rpc::CodeOf(status));
    group.message = status.error_message();
    return group;
  }

 private:
  const ServeLoad load_;
  std::unique_ptr<rollout::v1::RolloutService::Stub> stub_;
};

}  // namespace

std::unique_ptr<ServeTarget> MakeGrpcTarget(const ServeLoad& load) {
  return std::make_unique<GrpcTarget>(load);
}

}  // namespace tandem::cli
