#include "rollout_server/service/reflection.h"

#include <dlfcn.h>

#include "absl/strings/str_cat.h"

namespace tandem::rollout {

absl::Status EnableReflection() {
  if (dlopen(TANDEM_GRPC_REFLECTION_LIBRARY, RTLD_NOW | RTLD_GLOBAL) != nullptr) {
    return absl::OkStatus();
  }
  return absl::NotFoundError(absl::StrCat("server.reflection needs gRPC's ",
                                          TANDEM_GRPC_REFLECTION_LIBRARY, ": ", dlerror()));
}

}  // namespace tandem::rollout
