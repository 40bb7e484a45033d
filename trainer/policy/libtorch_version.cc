#include "trainer/policy/libtorch_version.h"

#include <torch/version.h>

namespace tandem::trainer {

const char* LibTorchVersion() { return TORCH_VERSION; }

}  // namespace tandem::trainer
