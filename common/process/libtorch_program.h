// How programs that load LibTorch start and end. LibTorch registers thousands of operators when it
// is loaded and removes them at exit, which is most of the time of a short command. These functions
// let a program load it once, with OpenMP threads that sleep, and end without the removal.
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
// A program has it called before the constructors of its libraries, so that LibTorch is not set up
// for the restart too. It therefore uses nothing that a library sets up, such as getenv:
//   [[gnu::section(".preinit_array"), gnu::used]] auto* before_libraries = &EnsurePassiveThreads;
// Programs whose start nobody waits for may call it first in main.
void EnsurePassiveThreads(int argc, char** argv, char** environment);

// Flushes standard output and the C streams, and ends the process with `code`. Destructors of static
// objects and functions given to atexit are not called. Call it last in main, when all threads that
// write files have ended.
[[noreturn]] void ExitWithoutDestructors(int code);

}  // namespace tandem
