#include "rollout_server/groups/admission_batches.h"

#include <algorithm>

#include "common/base/status_macros.h"

namespace tandem::rollout {

absl::StatusOr<std::vector<GroupRequest>> AdmissionBatches::Arrive(const BatchRef& batch,
                                                                   int64_t group_id,
                                                                   GroupRequest request) {
  if (batch.num_groups < 1) {
    return InvalidArgument("admission_batch.num_groups is ", batch.num_groups,
                           ", must be at least 1");
  }
  const Key key(batch.run_id, batch.batch_id);
  if (std::find(released_.begin(), released_.end(), key) != released_.end()) {
    std::vector<GroupRequest> alone;
    alone.push_back(std::move(request));
    return alone;
  }
  const auto found = batches_.find(key);
  if (found != batches_.end()) {
    if (found->second.num_groups != batch.num_groups) {
      return InvalidArgument("admission batch ", batch.batch_id, " has ", found->second.num_groups,
                             " groups; group ", group_id, " says ", batch.num_groups);
    }
    if (found->second.held.contains(group_id)) {
      return InvalidArgument("group ", group_id, " is in admission batch ", batch.batch_id,
                             " already");
    }
  }
  std::erase(emptied_, key);
  Batch& held = batches_[key];
  held.num_groups = batch.num_groups;
  held.skipped.erase(group_id);
  held.held.emplace(group_id, std::move(request));
  return ReleaseIfComplete(key);
}

bool AdmissionBatches::Withdraw(const BatchRef& batch, int64_t group_id) {
  const auto found = batches_.find(Key(batch.run_id, batch.batch_id));
  if (found == batches_.end() || found->second.held.erase(group_id) == 0) return false;
  if (found->second.held.empty()) NoteEmptied(found->first);
  return true;
}

void AdmissionBatches::NoteEmptied(const Key& key) {
  if (batches_.at(key).skipped.empty()) {
    batches_.erase(Key(key));
    return;
  }
  emptied_.push_back(key);
  if (emptied_.size() <= kRememberedBatches) return;
  batches_.erase(emptied_.front());
  emptied_.pop_front();
}

std::vector<GroupRequest> AdmissionBatches::Skip(const BatchRef& batch, int64_t group_id) {
  const Key key(batch.run_id, batch.batch_id);
  const auto found = batches_.find(key);
  if (found == batches_.end() || found->second.held.erase(group_id) == 0) return {};
  found->second.skipped.insert(group_id);
  if (found->second.held.empty()) NoteEmptied(key);
  return ReleaseIfComplete(key);
}

void AdmissionBatches::Forget(const std::string& run_id) {
  const auto is_of_run = [&](const Key& key) { return key.first == run_id; };
  std::erase_if(released_, is_of_run);
  std::erase_if(emptied_, is_of_run);
  for (auto& [key, batch] : batches_) {
    if (is_of_run(key)) batch.skipped.clear();
  }
  std::erase_if(batches_,
                [&](const auto& one) { return is_of_run(one.first) && one.second.held.empty(); });
}

std::vector<GroupRequest> AdmissionBatches::ReleaseIfComplete(const Key& key) {
  const auto found = batches_.find(key);
  if (found == batches_.end()) return {};
  const Batch& batch = found->second;
  if (batch.held.size() + batch.skipped.size() < static_cast<size_t>(batch.num_groups)) return {};
  std::vector<GroupRequest> groups;
  for (auto& [group_id, request] : found->second.held) groups.push_back(std::move(request));
  batches_.erase(found);
  std::erase(emptied_, key);
  released_.push_back(key);
  if (released_.size() > kRememberedBatches) released_.pop_front();
  return groups;
}

}  // namespace tandem::rollout
