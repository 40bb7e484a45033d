#include "common/rpc/caller_channel.h"

#include <grpcpp/grpcpp.h>

#include <utility>

#include "common/rpc/caller_secret.h"
#include "common/rpc/refusal.h"

namespace tandem::rpc {
namespace {

grpc::ChannelArguments Arguments() {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, kKeepaliveMs);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, kKeepaliveTimeoutMs);
  arguments.SetInt(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);  // no limit on pings without data
  // The limit of one attempt to connect. A busy machine needs seconds.
  arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, 5000);
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  arguments.SetMaxReceiveMessageSize(static_cast<int>(kMaxMessageBytes));
  return arguments;
}

}  // namespace

CallerChannel::CallerChannel(std::string address, Caller caller)
    : address_(std::move(address)),
      caller_(std::move(caller)),
      secret_(caller_.SecretFor(address_)) {}

void CallerChannel::Identify(grpc::ClientContext* context) const {
  context->AddMetadata(kCallerSecretKey, secret_);
}

std::shared_ptr<grpc::Channel> CallerChannel::current() {
  MutexLock lock(&mu_);
  if (channel_ == nullptr) {
    channel_ = grpc::CreateCustomChannel(caller_.TargetOf(address_),
                                         caller_.CredentialsFor(address_), Arguments());
  }
  return channel_;
}

void CallerChannel::Ended(const std::shared_ptr<grpc::Channel>& used, const grpc::Status& status) {
  if (status.error_code() != grpc::StatusCode::UNAVAILABLE &&
      status.error_code() != grpc::StatusCode::DEADLINE_EXCEEDED) {
    return;
  }
  MutexLock lock(&mu_);
  if (channel_ == used) channel_ = nullptr;
}

}  // namespace tandem::rpc
