// Process: a caller of a rollout server, with a function for each method, for tests of access
// control.
#pragma once

#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <chrono>
#include <future>
#include <map>
#include <memory>
#include <string>

#include "proto/rollout.grpc.pb.h"
#include "proto/weights.grpc.pb.h"

namespace tandem::rollout::testing {

using weights::v1::WeightService;

// Its certificate and its secret are those of its channel.
class Process {
 public:
  explicit Process(const std::shared_ptr<grpc::Channel>& channel)
      : rollout_(v1::RolloutService::NewStub(channel)), weights_(WeightService::NewStub(channel)) {}

  static v1::GenerateGroupRequest Group(const std::string& run_id, int64_t group_id,
                                        int32_t first_id = 1) {
    v1::GenerateGroupRequest request;
    request.set_run_id(run_id);
    request.set_group_id(group_id);
    request.add_prompt_token_ids(first_id);
    request.set_num_completions(2);
    request.mutable_sampling()->set_temperature(1);
    request.mutable_sampling()->set_max_new_tokens(2);
    return request;
  }

  grpc::Status Generate(const v1::GenerateGroupRequest& request) {
    grpc::ClientContext context;
    SetDeadline(&context);
    const auto reader = rollout_->GenerateGroup(&context, request);
    v1::GenerateGroupResponse response;
    while (reader->Read(&response)) {
    }
    return reader->Finish();
  }

  std::future<grpc::Status> Start(const v1::GenerateGroupRequest& request) {
    return std::async(std::launch::async, [this, request] { return Generate(request); });
  }

  grpc::Status Abort(const std::string& run_id, int64_t group_id, bool finish_early,
                     bool* aborted = nullptr) {
    grpc::ClientContext context;
    SetDeadline(&context);
    v1::AbortGroupRequest request;
    request.set_run_id(run_id);
    request.set_group_id(group_id);
    request.set_finish_early(finish_early);
    v1::AbortGroupResponse response;
    const grpc::Status status = rollout_->AbortGroup(&context, request, &response);
    if (aborted != nullptr) *aborted = response.aborted();
    return status;
  }

  grpc::Status Score(const std::string& run_id) {
    grpc::ClientContext context;
    SetDeadline(&context);
    v1::ScoreRequest request;
    request.set_run_id(run_id);
    for (const int32_t id : {5, 6}) {
      if (request.sequences().empty()) request.add_sequences();
      request.mutable_sequences(0)->add_token_ids(id);
    }
    v1::ScoreResponse response;
    return rollout_->Score(&context, request, &response);
  }

  std::future<grpc::Status> StartScore(const std::string& run_id) {
    return std::async(std::launch::async, [this, run_id] { return Score(run_id); });
  }

  v1::GetInfoResponse Info() {
    grpc::ClientContext context;
    SetDeadline(&context);
    v1::GetInfoResponse info;
    EXPECT_TRUE(rollout_->GetInfo(&context, {}, &info).ok());
    return info;
  }

  grpc::Status Claim(const std::string& run_id, int64_t epoch = 1, bool release = false,
                     std::string* answer = nullptr) {
    weights::v1::InitTransferRequest request;
    request.set_run_id(run_id);
    request.set_epoch(epoch);
    request.set_release(release);
    return Weights<weights::v1::InitTransferResponse>(&WeightService::Stub::InitTransfer, request,
                                                      answer);
  }

  grpc::Status WeightInfo(const std::string& run_id, std::string* answer = nullptr) {
    weights::v1::GetWeightInfoRequest request;
    request.set_run_id(run_id);
    return Weights<weights::v1::GetWeightInfoResponse>(&WeightService::Stub::GetWeightInfo, request,
                                                       answer);
  }

  // Every call of the weight push that names a run, under its first epoch.
  std::map<std::string, grpc::Status> PushCalls(const std::string& run_id) {
    const auto of_run = [&](auto request) {
      request.set_run_id(run_id);
      return request;
    };
    const auto of_epoch = [&](auto request) {
      request.set_epoch(1);
      return of_run(request);
    };
    using Stub = WeightService::Stub;
    namespace wire = weights::v1;
    std::map<std::string, grpc::Status> statuses = {
        {"BeginUpdate", Weights<wire::BeginUpdateResponse>(&Stub::BeginUpdate,
                                                           of_epoch(wire::BeginUpdateRequest()))},
        {"JoinPushGroup", Weights<wire::JoinPushGroupResponse>(
                              &Stub::JoinPushGroup, of_epoch(wire::JoinPushGroupRequest()))},
        {"ReceiveBuckets", Weights<wire::ReceiveBucketsResponse>(
                               &Stub::ReceiveBuckets, of_epoch(wire::ReceiveBucketsRequest()))},
        {"CommitUpdate", Weights<wire::CommitUpdateResponse>(
                             &Stub::CommitUpdate, of_epoch(wire::CommitUpdateRequest()))},
        {"AbortUpdate", Weights<wire::AbortUpdateResponse>(&Stub::AbortUpdate,
                                                           of_run(wire::AbortUpdateRequest()))},
        {"Pause", Weights<wire::PauseResponse>(&Stub::Pause, of_run(wire::PauseRequest()))},
        {"Resume", Weights<wire::ResumeResponse>(&Stub::Resume, of_run(wire::ResumeRequest()))},
        {"PushChunks", PushChunk(run_id)}};
    return statuses;
  }

 private:
  static void SetDeadline(grpc::ClientContext* context) {
    context->set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(60));
  }

  template <typename Response, typename Method, typename Request>
  grpc::Status Weights(Method method, const Request& request, std::string* answer = nullptr) {
    grpc::ClientContext context;
    SetDeadline(&context);
    Response response;
    const grpc::Status status = (weights_.get()->*method)(&context, request, &response);
    if (answer != nullptr) *answer = response.SerializeAsString();
    return status;
  }

  grpc::Status PushChunk(const std::string& run_id) {
    grpc::ClientContext context;
    SetDeadline(&context);
    weights::v1::PushChunksResponse response;
    const auto writer = weights_->PushChunks(&context, &response);
    weights::v1::PushChunksRequest chunk;
    chunk.set_run_id(run_id);
    writer->Write(chunk);
    writer->WritesDone();
    return writer->Finish();
  }

  const std::unique_ptr<v1::RolloutService::Stub> rollout_;
  const std::unique_ptr<WeightService::Stub> weights_;
};

}  // namespace tandem::rollout::testing
