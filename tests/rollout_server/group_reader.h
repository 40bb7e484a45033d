// Reader and MakeSubmission: a caller of GroupRegistry without gRPC, and its submissions.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "common/base/mutex.h"
#include "rollout_server/groups/group_registry.h"

namespace tandem::rollout::testing {

// Collects a call's items until its end.
class Reader : public GroupListener {
 public:
  void OnProgress() override {
    MutexLock lock(&mu_);
    ++progress_;
    changed_.NotifyAll();
  }

  // Waits for the end; returns the completions' indices and how it ended.
  std::pair<std::vector<int32_t>, absl::Status> ReadAll(const GroupCall& call) {
    std::vector<int32_t> indices;
    size_t cursor = 0;
    while (true) {
      int64_t seen;
      {
        MutexLock lock(&mu_);
        seen = progress_;
      }
      GroupCall::Item item = call.Next(&cursor);
      if (auto* completion = std::get_if<CompletionPtr>(&item)) {
        indices.push_back((*completion)->index);
      } else if (std::holds_alternative<GroupReport>(item)) {
        return {indices, absl::OkStatus()};
      } else if (auto* error = std::get_if<absl::Status>(&item)) {
        return {indices, *error};
      } else {
        MutexLock lock(&mu_);
        while (progress_ == seen) changed_.Wait(&mu_);
      }
    }
  }

 private:
  Mutex mu_;
  CondVar changed_;
  int64_t progress_ ABSL_GUARDED_BY(mu_) = 0;
};

inline GroupSubmission MakeSubmission(int64_t group_id, int32_t tokens = 2,
                                      const std::string& run_id = "run") {
  GroupSubmission submission;
  submission.run_id = run_id;
  submission.group_id = group_id;
  submission.fingerprint = std::to_string(tokens);
  submission.request.prompt = {1, 2, 3};
  submission.request.num_completions = 2;
  submission.request.sampling.max_new_tokens = tokens;
  return submission;
}

}  // namespace tandem::rollout::testing
