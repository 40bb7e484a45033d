#include "cli/data/group_sampler.h"

#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <random>
#include <thread>
#include <utility>

#include "absl/status/status.h"
#include "common/base/clock.h"
#include "common/base/status_macros.h"
#include "common/rpc/caller_channel.h"
#include "common/rpc/grpc_call.h"
#include "proto/rollout.grpc.pb.h"

namespace tandem::cli {
namespace {

using rollout::v1::Completion;
using rollout::v1::FINISH_REASON_LENGTH;
using rollout::v1::GenerateGroupRequest;
using rollout::v1::GenerateGroupResponse;
using rollout::v1::RolloutService;

constexpr double kAskSeconds = 5;
constexpr double kFirstPauseSeconds = 0.1, kLongestPauseSeconds = 5;

bool MayAskAgain(const absl::Status& status) {
  return status.code() == absl::StatusCode::kUnavailable ||
         status.code() == absl::StatusCode::kResourceExhausted ||
         status.code() == absl::StatusCode::kAborted;
}

GenerateGroupRequest SampleMessage(const SampleRequest& asked, int64_t group_id) {
  GenerateGroupRequest request;
  request.set_group_id(group_id);
  request.mutable_prompt_token_ids()->Add(asked.prompt.begin(), asked.prompt.end());
  request.set_num_completions(static_cast<int32_t>(asked.num_completions));
  rollout::v1::SamplingParams* const sampling = request.mutable_sampling();
  sampling->set_temperature(static_cast<float>(asked.temperature));
  sampling->set_top_p(static_cast<float>(asked.top_p));
  sampling->set_max_new_tokens(static_cast<int32_t>(asked.max_new_tokens));
  sampling->set_seed(asked.seed);
  return request;
}

}  // namespace

struct GroupSampler::Impl {
  Impl(const std::string& address, const rpc::Caller& caller) : channel(address, caller) {}

  absl::StatusOr<SampledServer> Info();
  absl::StatusOr<SampledGroup> CallOnce(const GenerateGroupRequest& request);

  rpc::CallerChannel channel;
  double patience_seconds = 60;
  SampledServer server;
  std::atomic<int64_t> next_group = 0;
};

absl::StatusOr<SampledServer> GroupSampler::Impl::Info() {
  const auto used = channel.current();
  const auto stub = RolloutService::NewStub(used);
  rollout::v1::GetInfoResponse info;
  grpc::ClientContext context;
  channel.Identify(&context);
  rpc::SetDeadline(context, absl::Seconds(kAskSeconds));
  const grpc::Status status = stub->GetInfo(&context, {}, &info);
  channel.Ended(used, status);
  if (status.error_code() == grpc::StatusCode::UNAVAILABLE) {
    return Unavailable(
        channel.address(), ": ", status.error_message(),
        ". Start a rollout server there (tandem serve), or name a model with --model");
  }
  TANDEM_RETURN_IF_ERROR(rpc::FromGrpc(status, channel.address()));
  return SampledServer{.model_path = info.model_path(),
                       .tokenizer_hash = info.tokenizer_hash(),
                       .max_context_tokens = info.max_context_tokens(),
                       .num_prompt_tokens_computed = info.num_prompt_tokens_computed()};
}

absl::StatusOr<SampledGroup> GroupSampler::Impl::CallOnce(const GenerateGroupRequest& request) {
  const auto used = channel.current();
  const auto stub = RolloutService::NewStub(used);
  grpc::ClientContext context;
  channel.Identify(&context);
  rpc::SetDeadline(context, absl::Seconds(patience_seconds));
  const auto reader = stub->GenerateGroup(&context, request);
  SampledGroup group;
  group.completions.resize(static_cast<size_t>(request.num_completions()));
  GenerateGroupResponse response;
  while (reader->Read(&response)) {
    if (response.has_done()) {
      group.prompt_tokens_cached = response.done().num_prompt_tokens_cached();
    }
    if (!response.has_completion()) continue;
    const Completion& completion = response.completion();
    const auto index = static_cast<size_t>(completion.index());
    if (index >= group.completions.size()) continue;
    group.completions[index] = {completion.text(),
                                completion.finish_reason() == FINISH_REASON_LENGTH};
  }
  const grpc::Status status = reader->Finish();
  channel.Ended(used, status);
  TANDEM_RETURN_IF_ERROR(rpc::FromGrpc(status, channel.address()));
  return group;
}

GroupSampler::GroupSampler(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
GroupSampler::~GroupSampler() = default;

const SampledServer& GroupSampler::server() const { return impl_->server; }
absl::StatusOr<SampledServer> GroupSampler::Ask() const { return impl_->Info(); }

absl::StatusOr<std::unique_ptr<GroupSampler>> GroupSampler::Connect(const std::string& address,
                                                                    const rpc::Caller& caller,
                                                                    double patience_seconds) {
  auto impl = std::make_unique<Impl>(address, caller);
  impl->patience_seconds = patience_seconds;
  // Groups of other clients have other ids: a server tells groups apart by caller and id.
  impl->next_group = static_cast<int64_t>(std::random_device{}()) << 20;
  TANDEM_ASSIGN_OR_RETURN(impl->server, impl->Info());
  return std::unique_ptr<GroupSampler>(new GroupSampler(std::move(impl)));
}

absl::StatusOr<SampledGroup> GroupSampler::Sample(const SampleRequest& asked) {
  const GenerateGroupRequest request = SampleMessage(asked, ++impl_->next_group);
  const double start = MonotonicSeconds();
  double pause = kFirstPauseSeconds;
  for (;;) {
    // A repeated call joins the group if it runs, so nothing is sampled twice.
    absl::StatusOr<SampledGroup> group = impl_->CallOnce(request);
    if (group.ok() || !MayAskAgain(group.status())) return group;
    if (MonotonicSeconds() - start > impl_->patience_seconds) return group;
    std::this_thread::sleep_for(std::chrono::duration<double>(pause));
    pause = std::min(2 * pause, kLongestPauseSeconds);
  }
}

}  // namespace tandem::cli
