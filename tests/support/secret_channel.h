// A channel that shows a secret with every call, as CallerChannel does, for tests that call a
// server through their own stubs.
#pragma once

#include <grpcpp/grpcpp.h>
#include <grpcpp/support/client_interceptor.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/rpc/caller_secret.h"

namespace tandem::testing {

class ShowsASecret : public grpc::experimental::Interceptor {
 public:
  explicit ShowsASecret(std::string secret) : secret_(std::move(secret)) {}

  void Intercept(grpc::experimental::InterceptorBatchMethods* methods) override {
    if (methods->QueryInterceptionHookPoint(
            grpc::experimental::InterceptionHookPoints::PRE_SEND_INITIAL_METADATA)) {
      methods->GetSendInitialMetadata()->emplace(rpc::kCallerSecretKey, secret_);
    }
    methods->Proceed();
  }

 private:
  const std::string secret_;
};

class ShowsASecretInEveryCall : public grpc::experimental::ClientInterceptorFactoryInterface {
 public:
  explicit ShowsASecretInEveryCall(std::string secret) : secret_(std::move(secret)) {}

  grpc::experimental::Interceptor* CreateClientInterceptor(
      grpc::experimental::ClientRpcInfo*) override {
    return new ShowsASecret(secret_);  // gRPC deletes it
  }

 private:
  const std::string secret_;
};

inline std::shared_ptr<grpc::Channel> SecretChannel(
    const std::string& address, const std::string& secret,
    const std::shared_ptr<grpc::ChannelCredentials>& credentials =
        grpc::InsecureChannelCredentials(),
    const grpc::ChannelArguments& arguments = {}) {
  std::vector<std::unique_ptr<grpc::experimental::ClientInterceptorFactoryInterface>> factories;
  factories.push_back(std::make_unique<ShowsASecretInEveryCall>(secret));
  return grpc::experimental::CreateCustomChannelWithInterceptors(address, credentials, arguments,
                                                                 std::move(factories));
}

}  // namespace tandem::testing
