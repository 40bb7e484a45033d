#include <grpcpp/grpcpp.h>

#include "cli/tools/library_versions.h"

namespace tandem::cli {

std::string GrpcVersion() { return grpc::Version(); }

}  // namespace tandem::cli
