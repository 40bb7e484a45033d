// MeasureMachineLimits: how fast this machine reads memory and multiplies at most, with so many
// threads, right now: what benchmarks and the server's roofline metrics divide by. Free of
// LibTorch.
#ifndef TANDEM_COMMON_TENSOR_MACHINE_LIMITS_H_
#define TANDEM_COMMON_TENSOR_MACHINE_LIMITS_H_

#include "common/process/thread_team.h"
#include "common/tensor/instruction_set.h"

namespace tandem {

struct MachineLimits {
  double read_bytes_per_second = 0;  // of memory that no cache holds
  double flops_per_second = 0;       // fp32 multiply-adds out of registers, two operations each
  double bf16_flops_per_second = 0;  // the same with bf16 instructions; 0 without them
};

// The best of several tries, about 0.3 s and 256 MiB of memory.
MachineLimits MeasureMachineLimits(ThreadTeam& team, InstructionSet set);

// The least time a computation can take that reads so many bytes and makes so many operations.
double RooflineSeconds(const MachineLimits& limits, double bytes, double flops);

}  // namespace tandem

#endif  // TANDEM_COMMON_TENSOR_MACHINE_LIMITS_H_
