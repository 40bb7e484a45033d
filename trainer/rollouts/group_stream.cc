#include "trainer/rollouts/group_stream.h"

#include <grpcpp/grpcpp.h>

#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/mutex.h"
#include "common/base/status_macros.h"
#include "common/rpc/caller_channel.h"
#include "common/rpc/grpc_call.h"
#include "common/weights/digest.h"
#include "proto/rollout.grpc.pb.h"
#include "trainer/environments/turn_player.h"
#include "trainer/experience/drawn_tokens.h"
#include "trainer/experience/group_check.h"
#include "trainer/rollouts/rollout_client.h"

namespace tandem::trainer {
namespace {

using rollout::v1::ContinueCompletionRequest;
using rollout::v1::GenerateGroupRequest;
using rollout::v1::RolloutService;

constexpr absl::Duration kAnswerTimeout = absl::Seconds(20);
constexpr int kAnswerAttempts = 3;

// The answers of one call. Replies and calls under way share it, and may outlive the group's call.
class Answers : public std::enable_shared_from_this<Answers> {
 public:
  Answers(const GroupCall& call, const GenerateGroupRequest& request, grpc::ClientContext* context)
      : stub_(RolloutService::NewStub(call.channel)),
        caller_(call.caller),
        run_id_(request.run_id()),
        group_id_(request.group_id()),
        context_(context) {}

  // The turn has been played, and its answer goes to the server, unless nothing can follow it.
  void Play(TurnPlayer& player, PlayedTurn turn) ABSL_LOCKS_EXCLUDED(mu_) {
    {
      MutexLock lock(&mu_);
      ++num_open_;
      num_played_[turn.index] = turn.turn;
    }
    const int32_t index = turn.index, number = turn.turn;
    const bool is_last = turn.is_last;
    player.Play(std::move(turn), [answers = shared_from_this(), index, number,
                                  is_last](const absl::StatusOr<TurnAnswer>& answer) {
      if (!is_last) answers->Send(index, number, answer);
      answers->CountReply();
    });
  }

  int32_t NumPlayed(int32_t index) ABSL_LOCKS_EXCLUDED(mu_) {
    MutexLock lock(&mu_);
    return num_played_[index];
  }

  void WaitForReplies() ABSL_LOCKS_EXCLUDED(mu_) {
    MutexLock lock(&mu_);
    while (num_open_ > 0) changed_.Wait(&mu_);
  }

  // The group's call has ended. Returns why an answer was refused, if one was.
  absl::Status Close() ABSL_LOCKS_EXCLUDED(mu_) {
    MutexLock lock(&mu_);
    context_ = nullptr;
    return refused_;
  }

 private:
  struct Call {
    grpc::ClientContext context;
    ContinueCompletionRequest request;
    rollout::v1::ContinueCompletionResponse response;
    int attempt = 1;
  };

  void Send(int32_t index, int32_t turn, const absl::StatusOr<TurnAnswer>& answer) {
    auto call = std::make_unique<Call>();
    ContinueCompletionRequest& request = call->request;
    request.set_run_id(run_id_);
    request.set_group_id(group_id_);
    request.set_index(index);
    request.set_turn(turn);
    if (answer.ok() && !answer->token_ids.empty()) {
      request.mutable_token_ids()->Add(answer->token_ids.begin(), answer->token_ids.end());
      request.set_token_hash(HashTokenIds(answer->token_ids));
    } else {
      request.set_finish(true);
    }
    Start(std::move(call));
  }

  void Start(std::unique_ptr<Call> call) ABSL_LOCKS_EXCLUDED(mu_) {
    rpc::SetDeadline(call->context, kAnswerTimeout);
    {
      MutexLock lock(&mu_);
      if (context_ == nullptr) return;
      caller_->Identify(&call->context);
    }
    Call* const started = call.release();
    stub_->async()->ContinueCompletion(
        &started->context, &started->request, &started->response,
        [answers = shared_from_this(), started](const grpc::Status& status) {
          answers->End(std::unique_ptr<Call>(started), status);
        });
  }

  void End(std::unique_ptr<Call> call, const grpc::Status& ended) {
    const ContinueCompletionRequest& request = call->request;
    const absl::Status status =
        rpc::FromGrpc(ended, absl::StrCat("answer to turn ", request.turn(), " of completion ",
                                          request.index(), " of group ", request.group_id()));
    // Safe to repeat: the same answer again changes nothing.
    if (absl::IsUnavailable(status) && call->attempt < kAnswerAttempts) {
      auto again = std::make_unique<Call>();
      again->request = request;
      again->attempt = call->attempt + 1;
      return Start(std::move(again));
    }
    // NOT_FOUND: the completion or its group has ended, which the stream tells.
    if (!status.ok() && !absl::IsNotFound(status)) Cancel(status);
  }

  void Cancel(const absl::Status& why) ABSL_LOCKS_EXCLUDED(mu_) {
    MutexLock lock(&mu_);
    if (context_ == nullptr) return;
    refused_.Update(why);
    context_->TryCancel();
  }

  void CountReply() ABSL_LOCKS_EXCLUDED(mu_) {
    MutexLock lock(&mu_);
    --num_open_;
    changed_.NotifyAll();
  }

  const std::unique_ptr<RolloutService::Stub> stub_;
  const rpc::CallerChannel* const caller_;  // valid until Close
  const std::string run_id_;
  const int64_t group_id_;

  Mutex mu_;
  CondVar changed_;
  grpc::ClientContext* context_ ABSL_GUARDED_BY(mu_);  // of the group's call; null once it ended
  absl::Status refused_ ABSL_GUARDED_BY(mu_);
  int64_t num_open_ ABSL_GUARDED_BY(mu_) = 0;                   // turns without a reply
  std::map<int32_t, int32_t> num_played_ ABSL_GUARDED_BY(mu_);  // turns, by completion
};

PlayedTurn MakePlayedTurn(const rollout::v1::Turn& turn) {
  return {.index = turn.index(),
          .turn = turn.turn(),
          .text = turn.text(),
          .ended_by_token = turn.finish_reason() == rollout::v1::FINISH_REASON_STOP,
          .num_tokens_left = turn.num_tokens_left()};
}

// The last turn of a completion that no turn can follow.
PlayedTurn LastTurnOf(const rollout::v1::Completion& completion) {
  return {.index = completion.index(),
          .turn = static_cast<int32_t>(NumTurns(completion)),
          .text = std::string(LastTurnText(completion)),
          .ended_by_token = completion.finish_reason() == rollout::v1::FINISH_REASON_STOP,
          .was_cut = IsTruncated(completion),
          .is_last = true};
}

}  // namespace

grpc::Status ReadGroup(const GroupCall& call, const GenerateGroupRequest& request,
                       grpc::ClientContext* context, FinishedGroup* group, absl::Status* checked) {
  const auto stub = RolloutService::NewStub(call.channel);
  std::shared_ptr<Answers> answers;
  if (call.player != nullptr && request.has_turns()) {
    answers = std::make_shared<Answers>(call, request, context);
    call.player->Begin(request.first_completion(),
                       request.num_completions() + (request.greedy_baseline() ? 1 : 0));
  }
  const auto reader = stub->GenerateGroup(context, request);
  rollout::v1::GenerateGroupResponse response;
  bool done = false, gave_up = false;
  while (reader->Read(&response)) {
    if (response.has_completion() && checked->ok()) {
      const rollout::v1::Completion& completion = response.completion();
      *checked = CheckCompletion(request, completion);
      if (checked->ok() && answers != nullptr &&
          answers->NumPlayed(completion.index()) < NumTurns(completion)) {
        answers->Play(*call.player, LastTurnOf(completion));
      }
      group->completions.push_back(std::move(*response.mutable_completion()));
    } else if (response.has_done()) {
      group->done = response.done();
      done = true;
    } else if (response.has_turn() && checked->ok()) {
      *checked = answers == nullptr ? DataLoss("group ", request.group_id(),
                                               ": the server sent a turn that nobody asked for")
                                    : CheckTurn(request, response.turn());
      if (!checked->ok()) {
        gave_up = true;
        context->TryCancel();
        continue;
      }
      answers->Play(*call.player, MakePlayedTurn(response.turn()));
    }
  }
  grpc::Status status = reader->Finish();
  if (answers != nullptr) {
    absl::Status refused = answers->Close();
    gave_up |= !refused.ok();
    if (checked->ok()) *checked = std::move(refused);
  }
  if (gave_up) return grpc::Status::OK;  // *checked says why
  if (status.ok() && checked->ok() && !done) {
    *checked = DataLoss("the stream ended without GroupDone");
  }
  if (answers != nullptr && status.ok() && checked->ok()) {
    answers->WaitForReplies();
    for (const rollout::v1::Completion& completion : group->completions) {
      group->episodes[completion.index()] = call.player->Outcome(completion);
    }
  }
  return status;
}

}  // namespace tandem::trainer
