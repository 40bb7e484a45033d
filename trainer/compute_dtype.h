// ComputeDType: what the policy's linear layers compute in. Used by policy.h and train_step.h.
#ifndef TANDEM_TRAINER_COMPUTE_DTYPE_H_
#define TANDEM_TRAINER_COMPUTE_DTYPE_H_

namespace tandem::trainer {

enum class ComputeDType { kFp32, kBf16 };

}  // namespace tandem::trainer

#endif  // TANDEM_TRAINER_COMPUTE_DTYPE_H_
