#include "common/process/thread_team.h"

#include "common/base/check.h"
#include "common/base/clock.h"

// A centralised barrier with a phase counter (the sense-reversing barrier of Mellor-Crummey and
// Scott 1991, counting instead of flipping), and work stealing over static ranges.
//
// The last member to arrive resets the cursors and the arrival count, and then increments phase_
// with release order; the others wait with acquire order for phase_ to change. Everything written
// in a phase is therefore visible after it, and no cursor is reset while a member still claims
// items, because all have arrived. A claim past the end of a range only says that the range is used
// up, so claims need no ordering. runs_ wakes the team in the same way, and stopping_ is read after
// runs_ has changed.
//
// Invariant: body_ stays valid until every member has left it, because Run itself ends with Meet.
namespace tandem {
namespace {

// Longer than most waits between phases. Longer spins lose more than they gain beside a process
// that keeps a core busy (tests/bench/neighbour_bench.py).
constexpr double kSpinSeconds = 20e-6;
constexpr int kSpinsPerLook = 64;  // pauses between two reads of the clock

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
  Meet();  // afterwards no member uses the body
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

// Returns the value once it differs from `seen`. Spins first, then sleeps.
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
