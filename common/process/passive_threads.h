// EnsurePassiveThreads: OpenMP threads that spin briefly and then sleep. With a busy neighbour,
// threads that go on spinning make small parallel loops ten times slower; threads that never spin
// are put to sleep and woken thousands of times in a pass over a model, an eighth of its time in
// bf16 (tests/bench/results/2026-11-22-train-cpu.md). libgomp reads its environment before main, so
// the process starts itself anew once with the variables set. Used by every binary that computes.
#ifndef TANDEM_COMMON_PROCESS_PASSIVE_THREADS_H_
#define TANDEM_COMMON_PROCESS_PASSIVE_THREADS_H_

namespace tandem {

// Call first in main. Returns at once when OMP_WAIT_POLICY is set (by the user, who knows better,
// or by the first pass); otherwise sets OMP_WAIT_POLICY=passive and GOMP_SPINCOUNT=20000 and
// executes /proc/self/exe with the same arguments. If that fails, it returns: slower, not wrong.
void EnsurePassiveThreads(int argc, char** argv);

}  // namespace tandem

#endif  // TANDEM_COMMON_PROCESS_PASSIVE_THREADS_H_
