// EnsurePassiveThreads: makes OpenMP threads spin briefly and then sleep. If they spin on while
// another process uses their cores, small parallel loops become ten times slower. If they never
// spin, they are put to sleep and woken thousands of times in a pass over a model, which costs an
// eighth of its time in bf16 (tests/bench/results/2026-11-22-train-cpu.md). libgomp reads its
// environment before main, so the process restarts itself once with the variables set. Used by
// every program that computes.
#ifndef TANDEM_COMMON_PROCESS_PASSIVE_THREADS_H_
#define TANDEM_COMMON_PROCESS_PASSIVE_THREADS_H_

namespace tandem {

// Call it first in main. It returns at once if OMP_WAIT_POLICY is set, by the user or by the first
// pass. Otherwise it sets OMP_WAIT_POLICY=passive and GOMP_SPINCOUNT=20000 and executes
// /proc/self/exe with the same arguments. If that fails, it returns, and the program runs slower.
void EnsurePassiveThreads(int argc, char** argv);

}  // namespace tandem

#endif  // TANDEM_COMMON_PROCESS_PASSIVE_THREADS_H_
