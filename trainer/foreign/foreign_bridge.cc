#include "trainer/foreign/foreign_bridge.h"

#include <grpcpp/grpcpp.h>
#include <stdlib.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/rpc/grpc_call.h"
#include "common/rpc/refusal.h"
#include "proto/rollout.grpc.pb.h"
#include "proto/weights.grpc.pb.h"
#include "trainer/rollouts/server_lookup.h"

namespace tandem::trainer {
namespace {

namespace rollouts = ::tandem::rollout::v1;
namespace pushes = ::tandem::weights::v1;

// Sends the value of `answer`, or its error.
template <typename Response>
grpc::Status Answer(absl::StatusOr<Response> answer, Response* response) {
  if (answer.ok()) *response = *std::move(answer);
  return rpc::ToGrpc(answer.status());
}

class BridgedRollouts : public rollouts::RolloutService::Service {
 public:
  explicit BridgedRollouts(ForeignServer* server) : server_(server) {}

  grpc::Status GenerateGroup(grpc::ServerContext* context,
                             const rollouts::GenerateGroupRequest* request,
                             grpc::ServerWriter<rollouts::GenerateGroupResponse>* writer) override {
    auto completions = server_->Generate(*request, [&] { return context->IsCancelled(); });
    if (!completions.ok()) return rpc::ToGrpc(completions.status());
    rollouts::GenerateGroupResponse response;
    response.set_group_id(request->group_id());
    for (rollouts::Completion& completion : *completions) {
      *response.mutable_completion() = std::move(completion);
      writer->Write(response);
    }
    response.mutable_done()->set_num_completions(static_cast<int32_t>(completions->size()));
    writer->Write(response);
    return grpc::Status::OK;
  }

  grpc::Status Score(grpc::ServerContext* context, const rollouts::ScoreRequest* request,
                     rollouts::ScoreResponse* response) override {
    return Answer(server_->Score(*request, [&] { return context->IsCancelled(); }), response);
  }

  // A group ends with its call, whose connection to the server then ends.
  grpc::Status AbortGroup(grpc::ServerContext*, const rollouts::AbortGroupRequest*,
                          rollouts::AbortGroupResponse*) override {
    return grpc::Status::OK;
  }

  grpc::Status GetInfo(grpc::ServerContext*, const rollouts::GetInfoRequest*,
                       rollouts::GetInfoResponse* response) override {
    return Answer(server_->Info(), response);
  }

 private:
  ForeignServer* const server_;
};

class BridgedWeights : public pushes::WeightService::Service {
 public:
  explicit BridgedWeights(ForeignServer* server) : server_(server) {}

  grpc::Status InitTransfer(grpc::ServerContext*, const pushes::InitTransferRequest* request,
                            pushes::InitTransferResponse* response) override {
    response->set_epoch(request->epoch());
    return rpc::ToGrpc(server_->Claim(*request));
  }

  grpc::Status BeginUpdate(grpc::ServerContext*, const pushes::BeginUpdateRequest* request,
                           pushes::BeginUpdateResponse*) override {
    return rpc::ToGrpc(server_->Begin(*request));
  }

  grpc::Status PushChunks(grpc::ServerContext*,
                          grpc::ServerReader<pushes::PushChunksRequest>* reader,
                          pushes::PushChunksResponse* response) override {
    pushes::PushChunksRequest chunk;
    int64_t num_bytes = 0;
    while (reader->Read(&chunk)) {
      if (const absl::Status kept = server_->Receive(chunk); !kept.ok()) return rpc::ToGrpc(kept);
      num_bytes += static_cast<int64_t>(chunk.data().size());
    }
    response->set_bytes_received(num_bytes);
    return grpc::Status::OK;
  }

  grpc::Status CommitUpdate(grpc::ServerContext*, const pushes::CommitUpdateRequest* request,
                            pushes::CommitUpdateResponse* response) override {
    return Answer(server_->Commit(*request), response);
  }

  grpc::Status AbortUpdate(grpc::ServerContext*, const pushes::AbortUpdateRequest*,
                           pushes::AbortUpdateResponse* response) override {
    server_->Abort();
    response->set_aborted(true);
    return grpc::Status::OK;
  }

  grpc::Status GetWeightInfo(grpc::ServerContext*, const pushes::GetWeightInfoRequest*,
                             pushes::GetWeightInfoResponse* response) override {
    return Answer(server_->WeightInfo(), response);
  }

 private:
  ForeignServer* const server_;
};

// A foreign server with its services.
struct Bridged {
  Bridged(const std::string& address, const ForeignRun& run, const std::string& target_of)
      : foreign(address, run), rollouts(&foreign), weights(&foreign), target(target_of) {}

  ForeignServer foreign;
  BridgedRollouts rollouts;
  BridgedWeights weights;
  const std::string target;  // "unix:PATH"
  std::unique_ptr<grpc::Server> server;
};

}  // namespace

struct ForeignBridge::Impl {
  ~Impl() {
    for (const auto& one : bridged) {
      if (one->server == nullptr) continue;
      one->foreign.Stop();
      one->server->Shutdown(std::chrono::system_clock::now());
      one->server.reset();
    }
    std::error_code ignored;
    if (!directory.empty()) std::filesystem::remove_all(directory, ignored);
  }

  std::string directory;  // of the sockets, which only this user may enter
  std::vector<std::unique_ptr<Bridged>> bridged;
};

ForeignBridge::ForeignBridge(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
ForeignBridge::~ForeignBridge() = default;

absl::StatusOr<std::unique_ptr<ForeignBridge>> ForeignBridge::Start(
    const std::vector<std::string>& entries, const ForeignRun& run) {
  auto impl = std::make_unique<Impl>();
  for (const std::string& entry : entries) {
    if (ForeignHostPort(entry).empty()) continue;
    if (impl->directory.empty()) {
      std::string path = (std::filesystem::temp_directory_path() / "tandem-XXXXXX").string();
      if (::mkdtemp(path.data()) == nullptr) {
        return Unavailable(path, ": ", std::strerror(errno));
      }
      impl->directory = path;
    }
    const std::string target =
        absl::StrCat("unix:", impl->directory, "/", impl->bridged.size(), ".sock");
    impl->bridged.push_back(std::make_unique<Bridged>(entry, run, target));
    Bridged& one = *impl->bridged.back();
    grpc::ServerBuilder builder;
    builder.AddListeningPort(target, grpc::InsecureServerCredentials());
    builder.SetMaxReceiveMessageSize(static_cast<int>(rpc::kMaxMessageBytes));
    builder.RegisterService(&one.rollouts);
    builder.RegisterService(&one.weights);
    one.server = builder.BuildAndStart();
    if (one.server == nullptr) return Unavailable("cannot listen at ", target);
  }
  if (impl->bridged.empty()) return nullptr;
  return std::unique_ptr<ForeignBridge>(new ForeignBridge(std::move(impl)));
}

void ForeignBridge::RouteTo(rpc::Caller* caller) const {
  for (const auto& one : impl_->bridged) caller->Route(one->foreign.address(), one->target);
}

std::vector<ForeignDelivery> ForeignBridge::TakeDeliveries() {
  std::vector<ForeignDelivery> all;
  for (const auto& one : impl_->bridged) {
    for (ForeignDelivery& delivery : one->foreign.TakeDeliveries()) {
      all.push_back(std::move(delivery));
    }
  }
  return all;
}

}  // namespace tandem::trainer
