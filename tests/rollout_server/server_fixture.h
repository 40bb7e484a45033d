// ServerTest: a rollout server with the scripted engine behind real gRPC on a free port.
#pragma once

#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <string>

#include "proto/rollout.grpc.pb.h"
#include "proto/weights.grpc.pb.h"
#include "rollout_server/rollout_server.h"
#include "tests/rollout_server/scripted_engine.h"
#include "tests/support/secret_channel.h"
#include "tests/support/status_matchers.h"

namespace tandem::rollout::testing {

class ServerTest : public ::testing::Test {
 protected:
  static constexpr char kSecret[] = "the-secret-that-every-call-of-the-tests-shows";

  ServerTest() {
    options_.model = "scripted";
    options_.listen = "127.0.0.1:0";
    options_.max_queued_groups = 2;
  }

  void SetUp() override { StartServer(); }

  void TearDown() override {
    gate_.Open();
    if (score_gate_ != nullptr) score_gate_->Open();
    server_.reset();
  }

  void StartServer() {
    auto server = RolloutServer::Create(
        options_,
        {std::make_unique<ScriptedEngine>(&gate_, max_running_, in_flight_, score_gate_),
         ScriptedModel()},
        &observation_, [this] { return MonotonicSeconds() + clock_skew_.load(); });
    ASSERT_THAT(server, tandem::testing::IsOk());
    server_ = *std::move(server);
    channel_ = tandem::testing::SecretChannel(server_->address(), kSecret);
    rollout_ = v1::RolloutService::NewStub(channel_);
    weights_ = weights::v1::WeightService::NewStub(channel_);
  }

  static v1::GenerateGroupRequest Request(int64_t group_id, int32_t max_new_tokens = 2,
                                          const std::string& run_id = "run") {
    v1::GenerateGroupRequest request;
    request.set_run_id(run_id);
    request.set_group_id(group_id);
    for (const int32_t id : {1, 2, 3}) request.add_prompt_token_ids(id);
    request.set_num_completions(2);
    request.mutable_sampling()->set_temperature(1);
    request.mutable_sampling()->set_max_new_tokens(max_new_tokens);
    return request;
  }

  static void SetDeadline(grpc::ClientContext* context) {
    context->set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(120));
  }

  // One GenerateGroup call to its end.
  struct Outcome {
    std::vector<v1::GenerateGroupResponse> responses;
    grpc::Status status;
    std::string retry_after_ms, refusal;  // of the trailing metadata; empty: not there
  };
  Outcome Generate(const v1::GenerateGroupRequest& request) {
    grpc::ClientContext context;
    SetDeadline(&context);
    auto reader = rollout_->GenerateGroup(&context, request);
    Outcome outcome;
    v1::GenerateGroupResponse response;
    while (reader->Read(&response)) outcome.responses.push_back(response);
    outcome.status = reader->Finish();
    for (const auto& [key, value] : context.GetServerTrailingMetadata()) {
      if (key == "retry-after-ms") outcome.retry_after_ms.assign(value.data(), value.size());
      if (key == "tandem-refusal") outcome.refusal.assign(value.data(), value.size());
    }
    return outcome;
  }

  v1::GetInfoResponse Info() {
    grpc::ClientContext context;
    SetDeadline(&context);
    v1::GetInfoResponse info;
    EXPECT_TRUE(rollout_->GetInfo(&context, {}, &info).ok());
    return info;
  }

  // Asks GetInfo until `ready` says yes: each round trip lets the server's threads go on.
  template <typename Predicate>
  void WaitForInfo(Predicate ready) {
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(120);
    while (!ready(Info())) {
      ASSERT_LT(std::chrono::steady_clock::now(), deadline) << Info().DebugString();
    }
  }

  grpc::Status Claim(const std::string& run_id, int64_t epoch, bool release = false) {
    grpc::ClientContext context;
    SetDeadline(&context);
    weights::v1::InitTransferRequest request;
    request.set_run_id(run_id);
    request.set_epoch(epoch);
    request.set_release(release);
    weights::v1::InitTransferResponse response;
    return weights_->InitTransfer(&context, request, &response);
  }

  ServerOptions options_;
  size_t max_running_ = 8;
  InFlight in_flight_ = InFlight::kKeep;
  std::atomic<double> clock_skew_{0};  // seconds the server's clock is ahead
  StepGate gate_;
  StepGate* score_gate_ = nullptr;  // of slices of scores; null lets them all pass
  Observation observation_{"rollout_server"};
  std::unique_ptr<RolloutServer> server_;
  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<v1::RolloutService::Stub> rollout_;
  std::unique_ptr<weights::v1::WeightService::Stub> weights_;
};

MATCHER_P2(GrpcFailsWith, code, substring, "a gRPC error with this code and message") {
  *result_listener << arg.error_code() << ": " << arg.error_message();
  return arg.error_code() == code && arg.error_message().find(substring) != std::string::npos;
}

}  // namespace tandem::rollout::testing
