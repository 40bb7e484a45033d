#include "trainer/rollouts/server_scorer.h"

#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <chrono>
#include <optional>
#include <thread>

#include "absl/strings/str_cat.h"
#include "common/base/clock.h"
#include "common/base/status_macros.h"
#include "common/rpc/caller_channel.h"
#include "common/rpc/grpc_call.h"
#include "common/rpc/refusal.h"
#include "proto/rollout.grpc.pb.h"
#include "trainer/rollouts/call_end.h"

namespace tandem::trainer {
namespace {

using experience::v1::ScoredGroup;
using rollout::v1::ScoreRequest;
using rollout::v1::ScoreResponse;

constexpr int64_t kTokensPerCall = 16384;   // a server takes 65536
constexpr double kLeastWaitSeconds = 0.05;  // before a busy server is asked again

// Where the answer about a sequence goes.
struct Place {
  size_t group = 0, completion = 0;
};

struct Call {
  ScoreRequest request;
  std::vector<Place> places;  // [sequences]
  int64_t num_tokens = 0;
};

void AddSequence(const ScoredGroup& group, const rollout::v1::Completion& completion, Call& call) {
  rollout::v1::ScoreSequence* const sequence = call.request.add_sequences();
  *sequence->mutable_token_ids() = group.prompt().token_ids();
  sequence->mutable_token_ids()->MergeFrom(completion.token_ids());
  sequence->set_num_prompt_tokens(group.prompt().token_ids_size());
  call.num_tokens += sequence->token_ids_size();
}

std::vector<Call> CallsOf(const ScoreTask& task, const ScoreRequest& how) {
  std::vector<Call> calls;
  for (size_t g = 0; g < task.groups.size(); ++g) {
    const ScoredGroup& group = *task.groups[g];
    for (int c = 0; c < group.completions_size(); ++c) {
      if (group.completions(c).masked()) continue;
      if (calls.empty() || calls.back().num_tokens >= kTokensPerCall) calls.push_back({how, {}, 0});
      AddSequence(group, group.completions(c).completion(), calls.back());
      calls.back().places.push_back({g, static_cast<size_t>(c)});
    }
  }
  return calls;
}

absl::Status TakeAnswer(const std::string& address, const Call& call, const ScoreResponse& response,
                        GroupLogprobs& logprobs) {
  for (int i = 0; i < call.request.sequences_size(); ++i) {
    const rollout::v1::ScoreSequence& asked = call.request.sequences(i);
    const int num_scores = i < response.scores_size() ? response.scores(i).logprobs_size() : 0;
    if (num_scores != asked.token_ids_size()) {
      return DataLoss(address, ": ", num_scores, " log-probs for a sequence of ",
                      asked.token_ids_size(), " tokens");
    }
    const auto& scores = response.scores(i).logprobs();
    const Place& place = call.places[static_cast<size_t>(i)];
    logprobs[place.group][place.completion].assign(scores.begin() + asked.num_prompt_tokens(),
                                                   scores.end());
  }
  return absl::OkStatus();
}

absl::Status WithAddress(const std::string& address, const absl::Status& status) {
  return rpc::Refused(rpc::RefusalOf(status),
                      absl::Status(status.code(), absl::StrCat(address, ": ", status.message())));
}

CallEnd AskOnce(rpc::CallerChannel& channel, const ScoreRequest& request, double timeout_seconds,
                ScoreResponse* response) {
  grpc::ClientContext context;
  rpc::SetDeadline(context, absl::Seconds(timeout_seconds));
  channel.Identify(&context);
  const auto used = channel.current();
  const grpc::Status status =
      rollout::v1::RolloutService::NewStub(used)->Score(&context, request, response);
  channel.Ended(used, status);
  return EndOf(context, status);
}

// Asks a busy server again for as long as one call may take.
absl::StatusOr<ScoreResponse> Ask(rpc::CallerChannel& channel, const ScoreRequest& request,
                                  double timeout_seconds) {
  const double began = MonotonicSeconds();
  for (;;) {
    ScoreResponse response;
    const CallEnd end = AskOnce(channel, request, timeout_seconds, &response);
    if (end.status.ok()) return response;
    const double wait = std::max(end.retry_after_seconds, kLeastWaitSeconds);
    if (!end.is_busy() || MonotonicSeconds() + wait > began + timeout_seconds) {
      return WithAddress(channel.address(), end.status);
    }
    std::this_thread::sleep_for(std::chrono::duration<double>(wait));
  }
}

}  // namespace

absl::StatusOr<ScoredByServer> ServerScorer::Score(const ScoreTask& task,
                                                   const ScoreRequest& how) const {
  rpc::CallerChannel& channel = pool_->at(task.server).scores;
  ScoredByServer scored;
  for (const ScoredGroup* group : task.groups) {
    scored.logprobs.emplace_back(static_cast<size_t>(group->completions_size()));
  }
  std::optional<int64_t> version;
  for (const Call& call : CallsOf(task, how)) {
    TANDEM_ASSIGN_OR_RETURN(const ScoreResponse response,
                            Ask(channel, call.request, timeout_seconds_));
    if (version.value_or(response.weight_version()) != response.weight_version()) {
      return Aborted(channel.address(), ": version ", response.weight_version(), " came while ",
                     *version, " was scored");
    }
    version = response.weight_version();
    TANDEM_RETURN_IF_ERROR(TakeAnswer(channel.address(), call, response, scored.logprobs));
  }
  scored.version = version.value_or(0);
  return scored;
}

std::vector<absl::StatusOr<ScoredByServer>> ServerScorer::ScoreEach(
    const std::vector<ScoreTask>& tasks, const ScoreRequest& how) const {
  std::vector<absl::StatusOr<ScoredByServer>> results(tasks.size(), Unknown(""));
  std::vector<std::thread> threads;
  for (size_t i = 0; i < tasks.size(); ++i) {
    threads.emplace_back([&, i] { results[i] = Score(tasks[i], how); });
  }
  for (std::thread& thread : threads) thread.join();
  return results;
}

}  // namespace tandem::trainer
