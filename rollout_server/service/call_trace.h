// The caller's span, from the `traceparent` header of a gRPC call.
#pragma once

#include "common/observe/tracer.h"

namespace tandem::rollout {

// `Context`: a gRPC server context. None where there is no header, or a malformed one.
template <typename Context>
TraceContext TraceOf(const Context& context) {
  const auto& metadata = context.client_metadata();
  const auto header = metadata.find(kTraceparent);
  if (header == metadata.end()) return {};
  return ParseTraceparent({header->second.data(), header->second.size()}).value_or(TraceContext{});
}

}  // namespace tandem::rollout
