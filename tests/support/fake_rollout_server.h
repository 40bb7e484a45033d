// FakeRolloutServer: RolloutService and WeightService in this process on a real port, without a
// model. It answers groups from a script, keeps the weights it is pushed, and checks the life cycle
// of pushes, so that tests can expose the trainer's client, publisher and loop to every failure.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "common/weights/host_tensor.h"
#include "proto/rollout.pb.h"

namespace tandem::testing {

class FakeRolloutServer {
 public:
  // Loads `tensors` as version 0 and listens on a free loopback port.
  explicit FakeRolloutServer(std::vector<HostTensor> tensors = {}, std::string tokenizer_hash = "");
  ~FakeRolloutServer();
  FakeRolloutServer(const FakeRolloutServer&) = delete;
  FakeRolloutServer& operator=(const FakeRolloutServer&) = delete;

  const std::string& address() const;

  void Stop();     // as if killed: calls in progress break
  void Restart();  // on the same port, with the weights of the constructor and no owner

  // Writes the completions for a request; by default, ids come from the request's seed. Version
  // spans, hash and log-probs are filled in afterwards if they are missing.
  using Sample =
      std::function<void(const rollout::v1::GenerateGroupRequest&, rollout::v1::Completion*)>;
  void set_sample(Sample sample);

  // The log-prob that Score returns for token `t` of a completion, -1 by default; prompts get 0.
  using ScoreToken = std::function<float(int64_t version, int t)>;
  void set_score(ScoreToken score);

  // The next calls of GenerateGroup fail with these errors, one each.
  void FailNextGroups(std::deque<absl::Status> failures);
  // The same for Score.
  void FailNextScores(std::deque<absl::Status> failures);
  // The retry-after that refusals of a busy server carry; initially 1.
  void set_retry_after_ms(int64_t ms);
  // The next commits report a flipped digest for this tensor, drop the last chunk, or fail with
  // these errors.
  void FlipNextDigests(int count, const std::string& tensor);
  void FailNextCommits(std::deque<absl::Status> failures);
  // The next claims fail with these errors.
  void FailNextClaims(std::deque<absl::Status> failures);
  // Generation blocks until ReleaseGroups.
  void HoldGroups();
  void ReleaseGroups();
  void set_owner(const std::string& run_id);
  // GetInfo reports that the engine has made no progress for `seconds`, and that `most` is too
  // long; 0 reports nothing.
  void set_engine_silence(double seconds, double most);

  std::vector<rollout::v1::GenerateGroupRequest> requests() const;
  std::vector<rollout::v1::ScoreRequest> score_requests() const;
  int64_t num_commits() const;
  int64_t num_aborts() const;
  int64_t live_version() const;
  std::string owner() const;
  // The secrets that calls showed, by method (common/rpc/caller_secret.h); "" stands for a call
  // without one. Covers all methods except GetInfo.
  std::map<std::string, std::set<std::string>> callers() const;
  std::string live_bytes(const std::string& tensor) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace tandem::testing
