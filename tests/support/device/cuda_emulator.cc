#include "tests/support/device/cuda_emulator.h"

#include <setjmp.h>
#include <ucontext.h>

#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string_view>
#include <vector>

dim3 threadIdx, blockIdx, blockDim, gridDim;

namespace tandem::testing {
namespace {

constexpr size_t kStackBytes = 128 * 1024;
constexpr int kWarp = 32;

enum class Waits : uint8_t { kNot, kForBlock, kForWarp, kDone };

struct Fibre {
  ucontext_t context;  // its start
  jmp_buf place;       // where it waits; unlike a context switch, a jump needs no system call
  bool begun = false;
  std::unique_ptr<char[]> stack;
};

struct Block {
  std::vector<std::unique_ptr<Fibre>> fibres;
  std::vector<Waits> waits;          // [fibres], contiguous because each turn reads all of them
  std::vector<unsigned char> slots;  // [warps, 2, 32, kExchangeBytes]
  std::vector<uint8_t> turns;        // [threads]: which of the two slots the last exchange used
  jmp_buf scheduler;
  const std::function<void()>* kernel = nullptr;
  bool falling = false;  // whether threads take turns from the last one on
  int size = 0, running = 0;
};
Block block;

void Wait(Waits waits) {
  Fibre& self = *block.fibres[static_cast<size_t>(block.running)];
  block.waits[static_cast<size_t>(block.running)] = waits;
  if (_setjmp(self.place) == 0) _longjmp(block.scheduler, 1);
}

// A fibre runs one thread of every block, one block after the other. Making a fibre needs system
// calls, and a test launches thousands of blocks.
void RunFibre() {
  for (;;) {
    (*block.kernel)();
    Wait(Waits::kDone);
  }
}

// Runs the fibre until it waits again or ends.
__attribute__((noinline)) void Resume(Fibre& fibre) {
  if (_setjmp(block.scheduler) != 0) return;
  if (fibre.begun) _longjmp(fibre.place, 1);
  fibre.begun = true;
  setcontext(&fibre.context);
}

std::unique_ptr<Fibre> NewFibre() {
  auto fibre = std::make_unique<Fibre>();
  fibre->stack = std::make_unique<char[]>(kStackBytes);
  getcontext(&fibre->context);
  fibre->context.uc_stack.ss_sp = fibre->stack.get();
  fibre->context.uc_stack.ss_size = kStackBytes;
  fibre->context.uc_link = nullptr;
  makecontext(&fibre->context, RunFibre, 0);
  return fibre;
}

// Starts the kernel from its beginning, as thread `thread` of the block.
void Start(int thread) {
  while (block.fibres.size() <= static_cast<size_t>(thread)) block.fibres.push_back(NewFibre());
  block.waits.resize(block.fibres.size(), Waits::kDone);
  block.waits[static_cast<size_t>(thread)] = Waits::kNot;
}

// Resumes the threads [begin, end) if all of them that have not ended wait in this way.
bool Release(int begin, int end, Waits waits) {
  bool any = false;
  for (int t = begin; t < end; ++t) {
    const Waits now = block.waits[static_cast<size_t>(t)];
    if (now != waits && now != Waits::kDone) return false;
    any = any || now == waits;
  }
  for (int t = begin; t < end; ++t) {
    Waits& now = block.waits[static_cast<size_t>(t)];
    if (now == waits) now = Waits::kNot;
  }
  return any;
}

// Runs each thread of the warp that begins at `first` as far as possible, until the warp waits for
// the block. Returns whether any thread ran.
bool RunWarp(int first) {
  bool ran = false;
  const int end = std::min(block.size, first + kWarp);
  do {
    for (int i = first; i < end; ++i) {
      const int t = block.falling ? end - 1 - (i - first) : i;
      if (block.waits[static_cast<size_t>(t)] != Waits::kNot) continue;
      block.running = t;
      threadIdx = dim3(static_cast<unsigned>(t), 0, 0);
      Resume(*block.fibres[static_cast<size_t>(t)]);
      ran = true;
    }
  } while (Release(first, end, Waits::kForWarp));
  return ran;
}

// Runs one warp after the other as far as possible, so that data that a warp needs from another
// before a barrier is missing here. Returns false when all threads have ended.
bool Turn() {
  bool ran = false;
  const int warps = (block.size + kWarp - 1) / kWarp;
  for (int w = 0; w < warps; ++w) {
    ran = RunWarp((block.falling ? warps - 1 - w : w) * kWarp) || ran;
  }
  if (Release(0, block.size, Waits::kForBlock)) return true;
  const bool ended = std::all_of(block.waits.begin(), block.waits.begin() + block.size,
                                 [](Waits waits) { return waits == Waits::kDone; });
  if (ended) return false;
  if (ran) return true;
  std::fprintf(stderr, "threads of a block wait for each other at different places\n");
  std::abort();
}

}  // namespace

void WaitForBlock() { Wait(Waits::kForBlock); }
void WaitForWarp() { Wait(Waits::kForWarp); }

unsigned char* NextSlots() {
  const size_t warp = threadIdx.x / kWarp;
  const uint8_t turn = block.turns[threadIdx.x] ^= 1;
  return block.slots.data() + (warp * 2 + turn) * kWarp * kExchangeBytes;
}

void RunEmulated(dim3 grid, int threads, const std::function<void()>& kernel) {
  const char* const order = std::getenv("EMULATED_ORDER");
  block.falling = order != nullptr && std::string_view(order) == "falling";
  block.kernel = &kernel;
  block.size = threads;
  const int warps = (threads + kWarp - 1) / kWarp;
  block.slots.resize(static_cast<size_t>(warps) * 2 * kWarp * kExchangeBytes);
  blockDim = dim3(static_cast<unsigned>(threads), 1, 1);
  gridDim = grid;
  for (unsigned z = 0; z < grid.z; ++z) {
    for (unsigned y = 0; y < grid.y; ++y) {
      for (unsigned x = 0; x < grid.x; ++x) {
        blockIdx = dim3(x, y, z);
        block.turns.assign(static_cast<size_t>(threads), 0);
        for (int t = 0; t < threads; ++t) Start(t);
        while (Turn()) {
        }
      }
    }
  }
}

}  // namespace tandem::testing
