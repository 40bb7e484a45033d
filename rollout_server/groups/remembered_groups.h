// RememberedGroups: the latest finished groups, whose results a repeated call gets again. Used by
// GroupRegistry.
//
// Pure: no clock, no thread. Thread-compatible.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "rollout_server/groups/group_call.h"

namespace tandem::rollout {

// Names a group at this server. A client without ownership may use one number for several requests,
// so its `caller` is followed by the request's fingerprint.
struct GroupName {
  std::string run_id;
  int64_t group_id = 0;
  std::string caller;
  friend auto operator<=>(const GroupName&, const GroupName&) = default;
};

class RememberedGroups {
 public:
  struct Finished {
    std::string fingerprint;
    std::shared_ptr<GroupCall> call;
    int64_t oldest_version = 0;  // among the weights that sampled its tokens
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
    const auto is_of_run = [&](const GroupName& name) { return name.run_id == run_id; };
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
