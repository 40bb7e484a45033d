// CheckHealth: one call of gRPC's standard health service, whose stubs gRPC does not ship.
#pragma once

#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>

#include <chrono>
#include <memory>

namespace tandem::testing {

// A message without fields. A default ByteBuffer is not a message.
inline grpc::ByteBuffer EmptyMessage() {
  const grpc::Slice nothing;
  return grpc::ByteBuffer(&nothing, 1);
}

// When the call has ended, `context` tells who answered.
inline grpc::Status CheckHealth(const std::shared_ptr<grpc::Channel>& channel,
                                grpc::ClientContext* context) {
  context->set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(30));
  grpc::GenericStub stub(channel);
  grpc::CompletionQueue queue;
  const auto call =
      stub.PrepareUnaryCall(context, "/grpc.health.v1.Health/Check", EmptyMessage(), &queue);
  call->StartCall();
  grpc::ByteBuffer answer;
  grpc::Status status;
  call->Finish(&answer, &status, nullptr);
  void* tag = nullptr;
  bool good = false;
  queue.Next(&tag, &good);
  queue.Shutdown();
  while (queue.Next(&tag, &good)) {
  }
  return status;
}

inline grpc::Status CheckHealth(const std::shared_ptr<grpc::Channel>& channel) {
  grpc::ClientContext context;
  return CheckHealth(channel, &context);
}

}  // namespace tandem::testing
