#include <grpcpp/grpcpp.h>

#include "deploy/tandem/library_versions.h"

namespace tandem::front {

std::string GrpcVersion() { return grpc::Version(); }

}  // namespace tandem::front
