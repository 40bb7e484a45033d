#include "common/process/thread_team.h"

#include "common/base/check.h"
#include "common/base/clock.h"

namespace tandem {
namespace {

// Longer than most waits between phases, and short, because beside a process that keeps a core busy
// longer spins lose more than they win (tests/bench/neighbour_bench.py).
constexpr double kSpinSeconds = 20e-6;
constexpr int kSpinsPerLook = 64;  // pauses between two looks at the clock

void Pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

}  // namespace

ThreadTeam::ThreadTeam(int size) : size_(size), cursors_(size) {
  TANDEM_CHECK(size >= 1);
  for (int i = 1; i < size; ++i) threads_.emplace_back([this, i] { Serve(i); });
}

ThreadTeam::~ThreadTeam() {
  stopping_ = true;
  runs_.fetch_add(1, std::memory_order_release);
  runs_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void ThreadTeam::Run(absl::FunctionRef<void(Member&)> body) {
  body_ = &body;
  if (size_ > 1) {
    runs_.fetch_add(1, std::memory_order_release);
    runs_.notify_all();
  }
  Member member(this, 0);
  body(member);
  Meet();  // no member still reads the body
}

void ThreadTeam::Serve(int index) {
  uint32_t seen = 0;
  for (;;) {
    seen = WaitForChange(runs_, seen);
    if (stopping_) return;
    Member member(this, index);
    (*body_)(member);
    Meet();
  }
}

void ThreadTeam::Meet() {
  const uint32_t phase = phase_.load(std::memory_order_relaxed);
  if (num_arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 < size_) {
    WaitForChange(phase_, phase);
    return;
  }
  for (Cursor& cursor : cursors_) cursor.next.store(0, std::memory_order_relaxed);
  num_arrived_.store(0, std::memory_order_relaxed);
  if (size_ == 1) return;
  phase_.fetch_add(1, std::memory_order_release);
  phase_.notify_all();
}

// Returns the value once it differs from `seen`: spins, then sleeps.
uint32_t ThreadTeam::WaitForChange(std::atomic<uint32_t>& value, uint32_t seen) {
  const double start = MonotonicSeconds();
  do {
    for (int i = 0; i < kSpinsPerLook; ++i) {
      const uint32_t now = value.load(std::memory_order_acquire);
      if (now != seen) return now;
      Pause();
    }
  } while (MonotonicSeconds() - start < kSpinSeconds);
  for (;;) {
    value.wait(seen, std::memory_order_acquire);
    const uint32_t now = value.load(std::memory_order_acquire);
    if (now != seen) return now;
  }
}

}  // namespace tandem
