// TlsServer: a server with any key pair, which answers the health service and counts callers.
#pragma once

#include <grpcpp/grpcpp.h>
#include <grpcpp/health_check_service_interface.h>

#include <atomic>
#include <memory>
#include <string>

#include "cli/security/certificate_authority.h"
#include "common/base/mutex.h"
#include "proto/rollout.grpc.pb.h"

namespace tandem::testing {

class TlsServer {
 public:
  explicit TlsServer(const cli::CertifiedKey& own, const std::string& listen = "127.0.0.1:0") {
    grpc::EnableDefaultHealthCheckService(true);
    grpc::SslServerCredentialsOptions ssl;
    ssl.pem_key_cert_pairs.push_back({own.key, own.certificate});
    const auto credentials = grpc::SslServerCredentials(ssl);
    credentials->SetAuthMetadataProcessor(recorder_);
    int port = 0;
    grpc::ServerBuilder builder;
    builder.AddListeningPort(listen, credentials, &port);
    builder.RegisterService(&service_);  // for its threads
    server_ = builder.BuildAndStart();
    address_ = "127.0.0.1:" + std::to_string(port);
  }

  const std::string& address() const { return address_; }
  int num_calls() const { return recorder_->calls; }

  // The token that the last call showed; "" if none.
  std::string authorization() const {
    MutexLock lock(&recorder_->mu);
    return recorder_->authorization;
  }

 private:
  struct Recorder : grpc::AuthMetadataProcessor {
    bool IsBlocking() const override { return false; }
    grpc::Status Process(const InputMetadata& metadata, grpc::AuthContext*, OutputMetadata*,
                         OutputMetadata*) override {
      ++calls;
      MutexLock lock(&mu);
      const auto shown = metadata.find("authorization");
      authorization =
          shown == metadata.end() ? "" : std::string(shown->second.data(), shown->second.size());
      return grpc::Status::OK;
    }
    std::atomic<int> calls{0};
    Mutex mu;
    std::string authorization ABSL_GUARDED_BY(mu);
  };

  const std::shared_ptr<Recorder> recorder_ = std::make_shared<Recorder>();
  rollout::v1::RolloutService::Service service_;
  std::string address_;
  std::unique_ptr<grpc::Server> server_;
};

}  // namespace tandem::testing
