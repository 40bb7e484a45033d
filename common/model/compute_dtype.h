// ComputeDType: the dtype in which linear layers compute, in the engine (engine.h) and in the
// policy (policy.h).
#ifndef TANDEM_COMMON_MODEL_COMPUTE_DTYPE_H_
#define TANDEM_COMMON_MODEL_COMPUTE_DTYPE_H_

namespace tandem {

enum class ComputeDType { kFp32, kBf16 };

}  // namespace tandem

#endif  // TANDEM_COMMON_MODEL_COMPUTE_DTYPE_H_
