#include "trainer/rewards/model/reward_service.h"

#include <grpcpp/grpcpp.h>

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/mutex.h"
#include "common/base/status_macros.h"
#include "proto/reward.grpc.pb.h"
#include "trainer/rewards/model/model_reward.h"

namespace tandem::trainer {
namespace {

using reward::v1::Input;
using reward::v1::Result;
using reward::v1::ScoreRequest;
using reward::v1::ScoreResponse;

constexpr int kMostRequestBytes = 64 << 20;  // as the component grpc

class Service final : public reward::v1::RewardService::Service {
 public:
  explicit Service(std::unique_ptr<RewardScorer> scorer) : scorer_(std::move(scorer)) {}

  grpc::Status Score(grpc::ServerContext* context, const ScoreRequest* request,
                     ScoreResponse* response) override;

 private:
  Mutex mu_;
  const std::unique_ptr<RewardScorer> scorer_ ABSL_PT_GUARDED_BY(mu_);
};

void Write(const RewardAnswer& answer, Result* result) {
  if (!answer.ok()) {
    result->set_error(std::string(answer.status().message()));
    return;
  }
  result->set_value(answer->value);
  for (const StepReward& step : answer->steps) {
    reward::v1::Step* const written = result->add_steps();
    written->set_end(step.end_byte);
    written->set_reward(step.value);
  }
}

grpc::Status Service::Score(grpc::ServerContext* context, const ScoreRequest* request,
                            ScoreResponse* response) {
  MutexLock lock(&mu_);
  if (context->IsCancelled()) return {grpc::StatusCode::CANCELLED, "the caller went away"};
  std::vector<TextToScore> texts;
  std::vector<absl::StatusOr<SplitText>> split;
  for (const Input& input : request->inputs()) {
    split.push_back(
        SplitForScoring(*scorer_, input.prompt(), input.completion(), input.truncated()));
    if (split.back().ok()) texts.push_back(split.back()->text);
  }
  const auto rewards = scorer_->Score(texts);
  size_t scored = 0;
  for (const absl::StatusOr<SplitText>& one : split) {
    Result* const result = response->add_results();
    if (!one.ok()) {
      Write(one.status(), result);
      continue;
    }
    const absl::StatusOr<ModelReward>& reward = rewards[scored++];
    Write(reward.ok() ? AnswerOf(*reward, one->ranges, scorer_->options())
                      : RewardAnswer(reward.status()),
          result);
  }
  return grpc::Status::OK;
}

}  // namespace

struct RewardModelServer::Impl {
  explicit Impl(std::unique_ptr<RewardScorer> scorer) : service(std::move(scorer)) {}

  Service service;
  std::string host;
  int port = 0;
  std::unique_ptr<grpc::Server> server;
};

RewardModelServer::RewardModelServer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

RewardModelServer::~RewardModelServer() { impl_->server->Shutdown(); }

std::string RewardModelServer::address() const {
  return absl::StrCat(impl_->host, ":", impl_->port);
}

absl::StatusOr<std::unique_ptr<RewardModelServer>> RewardModelServer::Start(
    std::unique_ptr<RewardScorer> scorer, const std::string& listen) {
  auto impl = std::make_unique<Impl>(std::move(scorer));
  impl->host = listen.substr(0, listen.rfind(':'));
  grpc::ServerBuilder builder;
  builder.SetMaxReceiveMessageSize(kMostRequestBytes);
  // Another process on the same port would take a part of the calls.
  builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
  builder.AddListeningPort(listen, grpc::InsecureServerCredentials(), &impl->port);
  builder.RegisterService(&impl->service);
  impl->server = builder.BuildAndStart();
  if (impl->server == nullptr || impl->port == 0) {
    return Unavailable("cannot listen on ", listen, ": want HOST:PORT of this machine, free");
  }
  return std::unique_ptr<RewardModelServer>(new RewardModelServer(std::move(impl)));
}

}  // namespace tandem::trainer
