// gRPC server reflection, off unless a run asks for it.
#pragma once

#include "absl/status/status.h"

namespace tandem::rollout {

// Every server this process builds from now on serves reflection. The library registers itself as
// it is loaded, which is why it is not linked: a program that links it always serves reflection.
//   NOT_FOUND  the library is not installed
absl::Status EnableReflection();

}  // namespace tandem::rollout
