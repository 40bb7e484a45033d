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

// The shortest time for a computation with this many bytes to read and operations to make, those on
// int8 apart.
double RooflineSeconds(const MachineLimits& limits, double bytes, double flops,
                       double int8_ops = 0);

}  // namespace tandem
