// RememberedGroups: finished groups whose results a repeated call gets again, the latest ones. Used
// by GroupRegistry.
//
// Pure: no clock, no thread. Thread-compatible.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <utility>

#include "rollout_server/groups/group_call.h"

namespace tandem::rollout {

// run_id, group_id, and the caller, with the fingerprint for guests: they may number groups as they
// like.
using GroupName = std::tuple<std::string, int64_t, std::string>;

class RememberedGroups {
 public:
  struct Finished {
    std::string fingerprint;
    std::shared_ptr<GroupCall> call;
    int64_t oldest_version = 0;  // of the weights that drew its tokens
  };

  explicit RememberedGroups(int64_t most) : most_(static_cast<size_t>(most)) {}

  void Add(const GroupName& name, Finished finished) {
    if (!groups_.insert_or_assign(name, std::move(finished)).second) std::erase(order_, name);
    order_.push_back(name);
    if (order_.size() > most_) ForgetOldest();
  }

  // Null: not remembered.
  const Finished* Find(const GroupName& name) const {
    const auto found = groups_.find(name);
    return found == groups_.end() ? nullptr : &found->second;
  }

  void Forget(const GroupName& name) {
    groups_.erase(name);
    std::erase(order_, name);
  }

  void ForgetRun(const std::string& run_id) {
    const auto is_of_run = [&](const GroupName& name) { return std::get<0>(name) == run_id; };
    std::erase_if(groups_, [&](const auto& one) { return is_of_run(one.first); });
    std::erase_if(order_, is_of_run);
  }

  // False: none is left.
  bool ForgetOldest() {
    if (order_.empty()) return false;
    groups_.erase(order_.front());
    order_.pop_front();
    return true;
  }

 private:
  const size_t most_;
  std::map<GroupName, Finished> groups_;
  std::deque<GroupName> order_;  // oldest first
};

}  // namespace tandem::rollout
