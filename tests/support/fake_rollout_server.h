// FakeRolloutServer: RolloutService and WeightService in this process on a real port, without a
// model. Answers groups from a script and keeps the weights it is pushed, with the life cycle's
// checks, so that the trainer's client, publisher and loop can be shown every failure.
#ifndef TANDEM_TESTS_SUPPORT_FAKE_ROLLOUT_SERVER_H_
#define TANDEM_TESTS_SUPPORT_FAKE_ROLLOUT_SERVER_H_

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

  void Stop();     // as if killed: calls in flight break
  void Restart();  // on the same port, with the weights of the constructor and no owner

  // Writes completions for a request; the default draws ids from the request's seed. Completions
  // get version spans, hash and log-probs afterwards, if they have none.
  using Sample =
      std::function<void(const rollout::v1::GenerateGroupRequest&, rollout::v1::Completion*)>;
  void set_sample(Sample sample);

  // Score answers with this log-prob for token `t` of a completion, 0 on prompts; the default is
  // -1.
  using ScoreToken = std::function<float(int64_t version, int t)>;
  void set_score(ScoreToken score);

  // The next calls of GenerateGroup fail so, one entry each.
  void FailNextGroups(std::deque<absl::Status> failures);
  // As FailNextGroups, of Score.
  void FailNextScores(std::deque<absl::Status> failures);
  // What refusals of busy servers say; at first 1.
  void set_retry_after_ms(int64_t ms);
  // The next commits report a flipped digest for this tensor / drop the last chunk / fail so.
  void FlipNextDigests(int count, const std::string& tensor);
  void FailNextCommits(std::deque<absl::Status> failures);
  // The next claims fail so.
  void FailNextClaims(std::deque<absl::Status> failures);
  // Generation blocks until Release.
  void HoldGroups();
  void ReleaseGroups();
  void set_owner(const std::string& run_id);
  // GetInfo says that the engine has not moved for so long, and that `most` is too long; 0: a
  // server that does not say.
  void set_engine_silence(double seconds, double most);

  std::vector<rollout::v1::GenerateGroupRequest> requests() const;
  std::vector<rollout::v1::ScoreRequest> score_requests() const;
  int64_t num_commits() const;
  int64_t num_aborts() const;
  int64_t live_version() const;
  std::string owner() const;
  // Method -> the secrets that its calls showed (common/rpc/caller_secret.h); "": one showed none.
  // Of all methods but GetInfo.
  std::map<std::string, std::set<std::string>> callers() const;
  std::string live_bytes(const std::string& tensor) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace tandem::testing

#endif  // TANDEM_TESTS_SUPPORT_FAKE_ROLLOUT_SERVER_H_
