// PushTest: a ServerTest that run "run" owns under epoch 1, and calls of a weight push.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "common/weights/digest.h"
#include "tests/rollout_server/server_fixture.h"

namespace tandem::rollout::testing {

inline std::string Digest(const std::string& text) {
  return Digest128(std::as_bytes(std::span(text.data(), text.size())));
}

class PushTest : public ServerTest {
 protected:
  void SetUp() override {
    ServerTest::SetUp();
    ASSERT_TRUE(Claim("run", 1).ok());
  }

  template <typename Request, typename Response, typename Method>
  std::pair<grpc::Status, Response> Call(Method method, const Request& request) {
    grpc::ClientContext context;
    SetDeadline(&context);
    Response response;
    const grpc::Status status = (weights_.get()->*method)(&context, request, &response);
    return {status, response};
  }

  static void AddTensor(weights::v1::WeightManifest* manifest, const char* name, const char* dtype,
                        int64_t size) {
    weights::v1::TensorSpec* tensor = manifest->add_tensors();
    tensor->set_name(name);
    tensor->set_dtype(dtype);
    tensor->add_shape(size);
  }

  grpc::Status Begin(int64_t version, bool with_b = true, int64_t epoch = 1,
                     const std::string& run_id = "run") {
    weights::v1::BeginUpdateRequest request;
    request.set_run_id(run_id);
    request.set_epoch(epoch);
    request.mutable_manifest()->set_version(version);
    AddTensor(request.mutable_manifest(), "a", "F32", 2);
    if (with_b) AddTensor(request.mutable_manifest(), "b", "BF16", 3);
    return Call<weights::v1::BeginUpdateRequest, weights::v1::BeginUpdateResponse>(
               &weights::v1::WeightService::Stub::BeginUpdate, request)
        .first;
  }

  static weights::v1::PushChunksRequest Chunk(int64_t version, int32_t tensor, int64_t offset,
                                              const std::string& data) {
    weights::v1::PushChunksRequest chunk;
    chunk.set_run_id("run");
    chunk.set_version(version);
    chunk.set_tensor_index(tensor);
    chunk.set_offset_bytes(offset);
    chunk.set_data(data);
    return chunk;
  }

  grpc::Status Push(const std::vector<weights::v1::PushChunksRequest>& chunks) {
    grpc::ClientContext context;
    SetDeadline(&context);
    weights::v1::PushChunksResponse response;
    auto writer = weights_->PushChunks(&context, &response);
    for (const auto& chunk : chunks) {
      if (!writer->Write(chunk)) break;
    }
    writer->WritesDone();
    return writer->Finish();
  }

  std::pair<grpc::Status, weights::v1::CommitUpdateResponse> Commit(int64_t version,
                                                                    const std::string& a,
                                                                    const std::string& b) {
    weights::v1::CommitUpdateRequest request;
    request.set_run_id("run");
    request.set_epoch(1);
    request.set_version(version);
    for (const auto& [name, text] : {std::pair("a", a), std::pair("b", b)}) {
      weights::v1::TensorDigest* digest = request.add_digests();
      digest->set_name(name);
      digest->set_xxh3_128(Digest(text));
    }
    return Call<weights::v1::CommitUpdateRequest, weights::v1::CommitUpdateResponse>(
        &weights::v1::WeightService::Stub::CommitUpdate, request);
  }

  weights::v1::GetWeightInfoResponse WeightInfo() {
    return Call<weights::v1::GetWeightInfoRequest, weights::v1::GetWeightInfoResponse>(
               &weights::v1::WeightService::Stub::GetWeightInfo, {})
        .second;
  }

  void ExpectPushWorks(int64_t version) {
    ASSERT_TRUE(Begin(version).ok());
    ASSERT_TRUE(Push({Chunk(version, 0, 0, "AAAAAAAA"), Chunk(version, 1, 0, "BBBBBB")}).ok());
    const auto [status, response] = Commit(version, "AAAAAAAA", "BBBBBB");
    ASSERT_TRUE(status.ok()) << status.error_message();
    EXPECT_EQ(response.live_version(), version);
    EXPECT_EQ(response.live_digests_size(), 2);
    EXPECT_EQ(WeightInfo().live_digests(0).xxh3_128(), Digest("AAAAAAAA"));
  }
};

}  // namespace tandem::rollout::testing
