#include "rollout_server/groups/group_call.h"

#include <utility>

namespace tandem::rollout {

GroupCall::Item GroupCall::Next(size_t* cursor) const {
  MutexLock lock(&mu_);
  if (!error_.ok()) return error_;
  if (*cursor < completions_.size()) return completions_[(*cursor)++];
  if (summary_) return *summary_;
  return Nothing{};
}

GroupCall::Item GroupCall::NextWhenWhole(size_t* cursor) const {
  MutexLock lock(&mu_);
  if (!error_.ok()) return error_;
  if (!summary_) return Nothing{};
  if (*cursor == completions_.size()) return *summary_;
  const auto wanted = static_cast<int32_t>((*cursor)++);
  for (const CompletionPtr& completion : completions_) {
    if (completion->index == wanted) return completion;
  }
  return absl::InternalError("a group ended without one of its completions");
}

void GroupCall::Append(CompletionPtr completion) {
  MutexLock lock(&mu_);
  completions_.push_back(std::move(completion));
}

void GroupCall::End(GroupSummary summary) {
  MutexLock lock(&mu_);
  if (!error_.ok() || summary_) return;
  summary.num_completions = static_cast<int32_t>(completions_.size());
  summary_ = summary;
}

void GroupCall::End(absl::Status error) {
  MutexLock lock(&mu_);
  if (!error_.ok() || summary_) return;
  error_ = std::move(error);
  completions_.clear();  // nobody gets them any more
}

void GroupCall::AddListener(std::shared_ptr<GroupListener> listener) {
  MutexLock lock(&mu_);
  listeners_.push_back(std::move(listener));
}

bool GroupCall::RemoveListener(const GroupListener* listener) {
  std::vector<std::shared_ptr<GroupListener>> gone;  // destroyed after the lock is released
  MutexLock lock(&mu_);
  std::vector<std::shared_ptr<GroupListener>> left;
  for (auto& one : listeners_) (one.get() == listener ? gone : left).push_back(std::move(one));
  listeners_ = std::move(left);
  return !gone.empty() && listeners_.empty();
}

std::vector<std::shared_ptr<GroupListener>> GroupCall::listeners() const {
  MutexLock lock(&mu_);
  return listeners_;
}

}  // namespace tandem::rollout
