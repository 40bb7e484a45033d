#include "trainer/rewards/external/question_pool.h"

#include <algorithm>
#include <utility>

#include "common/base/check.h"
#include "common/base/status_macros.h"
#include "common/process/line_process.h"

namespace tandem::trainer {
namespace {

absl::Status PoolEnded() { return Cancelled("the run ends: the question was not asked"); }

}  // namespace

QuestionPool::QuestionPool(const PoolOptions& options, MakeAsker make)
    : options_(options), make_(std::move(make)) {}

QuestionPool::~QuestionPool() {
  Cancel();
  std::vector<std::thread> threads;
  {
    MutexLock lock(&mu_);
    threads.swap(threads_);
  }
  for (std::thread& thread : threads) thread.join();
}

void QuestionPool::Submit(std::vector<Asked> asked) {
  {
    MutexLock lock(&mu_);
    if (!cancelled_) {
      std::ranges::move(asked, std::back_inserter(line_));
      asked.clear();
      const int64_t wanted = std::min(options_.workers, num_busy_ + std::ssize(line_));
      while (std::ssize(threads_) < wanted) {
        threads_.emplace_back([this] { Work(); });
      }
      changed_.NotifyAll();
    }
  }
  for (Asked& refused : asked) refused.done(PoolEnded());
}

void QuestionPool::Cancel() {
  std::deque<Asked> open;
  {
    MutexLock lock(&mu_);
    cancelled_ = true;
    open.swap(line_);
    changed_.NotifyAll();
  }
  end_.Give();
  for (Asked& refused : open) refused.done(PoolEnded());
}

std::vector<QuestionPool::Asked> QuestionPool::Take(bool is_first) {
  MutexLock lock(&mu_);
  if (!is_first) --num_busy_;
  while (line_.empty() && !cancelled_) changed_.Wait(&mu_);
  const int64_t num_free = options_.workers - num_busy_;
  const int64_t share = (std::ssize(line_) + num_free - 1) / num_free;
  std::vector<Asked> taken;
  const auto continues_group = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    if (!options_.whole_groups || taken.empty() || line_.empty()) return false;
    const RewardQuestion &last = taken.back().question, &next = line_.front().question;
    return last.group == next.group && last.scorer == next.scorer;
  };
  for (int64_t i = std::min(share, options_.batch_size); i > 0 || continues_group(); --i) {
    taken.push_back(std::move(line_.front()));
    line_.pop_front();
  }
  ++num_busy_;
  return taken;
}

void QuestionPool::Work() {
  BlockSigpipe();
  const std::unique_ptr<Asker> asker = make_(&end_);
  for (bool is_first = true;; is_first = false) {
    std::vector<Asked> taken = Take(is_first);
    if (taken.empty()) return;
    std::vector<RewardQuestion> questions;
    for (const Asked& asked : taken) questions.push_back(asked.question);
    std::vector<RewardAnswer> answers = asker->Ask(questions);
    TANDEM_CHECK(answers.size() == taken.size());
    for (size_t i = 0; i < taken.size(); ++i) taken[i].done(std::move(answers[i]));
  }
}

}  // namespace tandem::trainer
