// ThreadTeam: a team of threads that walk through the phases of one computation together. An engine
// step consists of a few hundred short phases (a norm, a product, an attention). Starting threads
// for each phase would cost more than some phases take, so a team is woken once per step and meets
// at a barrier after each phase.
//
// A member that waits spins for some microseconds and then sleeps, which keeps the cost low on a
// machine that is shared with other processes. Items are claimed one by one, so a member that lost
// its core delays the others by one item only.
//
// Use from one thread at a time. Bodies must not throw.
#pragma once

#include <atomic>
#include <cstdint>
#include <thread>
#include <vector>

#include "absl/functional/function_ref.h"

namespace tandem {

class ThreadTeam {
 public:
  // One thread's part in a Run.
  class Member {
   public:
    int index() const { return index_; }  // 0 .. size - 1; 0 is the thread that called Run

    // Calls item(i) once for every i in [0, n). Returns when all are done; everything they wrote is
    // then visible. Every member must call it with the same n. Each member starts with its own
    // range of items, from FirstOf(n) on and in order, and then takes items that others have left.
    template <typename Item>
    void ForEach(int64_t n, const Item& item) {
      for (int turn = 0; turn < team_->size_; ++turn) {
        const int owner = (index_ + turn) % team_->size_;
        const int64_t begin = team_->FirstOf(owner, n),
                      count = team_->FirstOf(owner + 1, n) - begin;
        for (int64_t i; (i = team_->Claim(owner)) < count;) item(begin + i);
      }
      team_->Meet();
    }

    // The first of n items that belongs to this member.
    int64_t FirstOf(int64_t n) const { return team_->FirstOf(index_, n); }

   private:
    friend class ThreadTeam;
    Member(ThreadTeam* team, int index) : team_(team), index_(index) {}
    ThreadTeam* const team_;
    const int index_;
  };

  // `size` >= 1 threads, including the caller of Run.
  explicit ThreadTeam(int size);
  ~ThreadTeam();
  ThreadTeam(const ThreadTeam&) = delete;
  ThreadTeam& operator=(const ThreadTeam&) = delete;

  int size() const { return size_; }

  // Runs `body` on every thread of the team, and returns when all have finished.
  void Run(absl::FunctionRef<void(Member&)> body);

 private:
  void Serve(int index);
  int64_t FirstOf(int member, int64_t n) const { return n * member / size_; }
  int64_t Claim(int owner) { return cursors_[owner].next.fetch_add(1, std::memory_order_relaxed); }
  void Meet();
  uint32_t WaitForChange(std::atomic<uint32_t>& value, uint32_t seen);

  // The number of claimed items of a member's range, on its own cache line.
  struct alignas(64) Cursor {
    std::atomic<int64_t> next{0};
  };

  const int size_;
  std::vector<std::thread> threads_;
  const absl::FunctionRef<void(Member&)>* body_ = nullptr;
  bool stopping_ = false;
  std::atomic<uint32_t> runs_{0};  // incremented when there is a body to run

  std::vector<Cursor> cursors_;
  alignas(64) std::atomic<int> num_arrived_{0};  // members at the barrier
  alignas(64) std::atomic<uint32_t> phase_{0};   // incremented when all have arrived
};

}  // namespace tandem
