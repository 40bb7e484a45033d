// ThreadTeam: threads that walk through the phases of one computation together. A step of the engine is
// a few hundred short phases (a norm, a product, an attention); starting threads for each would cost more
// than some of them take, so a team starts once per step and meets at a barrier after each phase.
//
// A member that waits spins for some microseconds and then sleeps, so a machine shared with other
// processes loses little; items of a phase are claimed one by one, so a member that lost its core
// delays the others by one item.
//
// Use from one thread at a time. Bodies must not throw.
#ifndef TANDEM_COMMON_BASE_THREAD_TEAM_H_
#define TANDEM_COMMON_BASE_THREAD_TEAM_H_

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

    // Calls item(i) for i in [0, n), shared out over the team, `grain` neighbours at a time; returns when
    // all are done, and everything they wrote is visible. Every member calls it with the same n.
    template <typename Item>
    void ForEach(int64_t n, int64_t grain, const Item& item) {
      for (;;) {
        const int64_t begin = team_->Claim(grain);
        if (begin >= n) break;
        const int64_t end = begin + grain < n ? begin + grain : n;
        for (int64_t i = begin; i < end; ++i) item(i);
      }
      team_->Meet();
    }

    // Runs `work` on one member while the others wait.
    template <typename Work>
    void Once(const Work& work) {
      ForEach(1, 1, [&](int64_t) { work(); });
    }

   private:
    friend class ThreadTeam;
    Member(ThreadTeam* team, int index) : team_(team), index_(index) {}
    ThreadTeam* const team_;
    const int index_;
  };

  // `size` >= 1 threads, the caller of Run being one of them.
  explicit ThreadTeam(int size);
  ~ThreadTeam();
  ThreadTeam(const ThreadTeam&) = delete;
  ThreadTeam& operator=(const ThreadTeam&) = delete;

  int size() const { return size_; }

  // Runs body on every thread of the team and returns when all are through.
  void Run(absl::FunctionRef<void(Member&)> body);

 private:
  void Serve(int index);
  int64_t Claim(int64_t grain) { return next_.fetch_add(grain, std::memory_order_relaxed); }
  void Meet();
  uint32_t WaitForChange(std::atomic<uint32_t>& value, uint32_t seen);

  const int size_;
  std::vector<std::thread> threads_;
  const absl::FunctionRef<void(Member&)>* body_ = nullptr;
  bool stopping_ = false;
  std::atomic<uint32_t> runs_{0};  // goes up when there is a body to run

  alignas(64) std::atomic<int64_t> next_{0};      // first item nobody has claimed
  alignas(64) std::atomic<int> num_arrived_{0};   // at the barrier
  alignas(64) std::atomic<uint32_t> phase_{0};    // goes up when all have arrived
};

}  // namespace tandem

#endif  // TANDEM_COMMON_BASE_THREAD_TEAM_H_
