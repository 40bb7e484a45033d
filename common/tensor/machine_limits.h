// MeasureMachineLimits: measures the most that this machine can read and multiply per second right
// now, with a given number of threads. Benchmarks and the server's roofline metrics divide by it.
// Free of LibTorch.
#pragma once

#include "common/process/thread_team.h"
#include "common/tensor/instruction_set.h"

namespace tandem {

struct MachineLimits {
  double read_bytes_per_second = 0;  // from memory, not from a cache
  double flops_per_second = 0;       // fp32 multiply-adds on registers, two operations each
  double bf16_flops_per_second = 0;  // the same with bf16 instructions; 0 without them
  double int8_ops_per_second = 0;    // the same with int8 instructions (VNNI); 0 without them
};

// The best of several tries. Takes about 0.3 s and 256 MiB of memory.
MachineLimits MeasureMachineLimits(ThreadTeam& team, InstructionSet set);

// The least that a computation has to read and to multiply, operations by the type of what they
// multiply.
struct MachineWork {
  double bytes = 0;
  double flops = 0;  // fp32
  double bf16_flops = 0;
  double int8_ops = 0;

  MachineWork& operator+=(const MachineWork& other);
  MachineWork operator-(const MachineWork& other) const;
  double operations() const { return flops + bf16_flops + int8_ops; }
};

// The shortest time for it: reading it all, or multiplying each type at its own rate (at the next
// wider type's where the machine has no instructions for it), whichever takes longer.
double RooflineSeconds(const MachineLimits& limits, const MachineWork& work);

}  // namespace tandem
