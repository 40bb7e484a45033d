// How programs that load LibTorch start and end: with OpenMP threads that sleep, after LibTorch was
// set up once, and without taking it apart again. A command such as `tandem --version` takes half
// of the time that it takes with these functions at the beginning of main and a plain return.
#pragma once

namespace tandem {

// Makes OpenMP threads spin briefly and then sleep. If they spin on while another process uses
// their cores, small parallel loops become ten times slower. If they never spin, they are put to
// sleep and woken thousands of times in a pass over a model, which costs an eighth of its time in
// bf16 (tests/bench/results/2026-11-22-train-cpu.md). libgomp reads its environment when it is
// loaded, so the process restarts itself once with the variables set.
//
// Returns at once if OMP_WAIT_POLICY is in `environment`, by the user or by the restart. Otherwise
// it executes /proc/self/exe with the same arguments and `environment`, and
// OMP_WAIT_POLICY=passive and GOMP_SPINCOUNT=20000 in addition. If that fails, it returns, and the
// program runs slower. `argv` and `environment` end with null.
//
// A program calls it before its libraries start (main is later), so that LibTorch starts once:
//   [[gnu::section(".preinit_array"), gnu::used]] auto* before_libraries = &EnsurePassiveThreads;
// It therefore uses nothing that a library sets up, such as getenv.
void EnsurePassiveThreads(int argc, char** argv, char** environment);

// Writes out what standard output and error hold, and ends the process with `code`, without the
// destructors of static objects: LibTorch's take the operators of its table out one by one, which
// takes a third as long as loading it. Call it last in main, after all threads that write files
// have ended.
[[noreturn]] void ExitWithoutDestructors(int code);

}  // namespace tandem
