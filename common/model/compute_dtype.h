// ComputeDType: what linear layers compute in, on either side: the engine (engine.h) and the policy
// (policy.h).
#ifndef TANDEM_COMMON_MODEL_COMPUTE_DTYPE_H_
#define TANDEM_COMMON_MODEL_COMPUTE_DTYPE_H_

namespace tandem {

enum class ComputeDType { kFp32, kBf16 };

}  // namespace tandem

#endif  // TANDEM_COMMON_MODEL_COMPUTE_DTYPE_H_
