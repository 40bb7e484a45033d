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
#include "trainer/experience/group_check.h"
#include "trainer/rollouts/rollout_client.h"
#include "trainer/rollouts/turn_player.h"

namespace tandem::trainer {
namespace {

using rollout::v1::ContinueCompletionRequest;
using rollout::v1::GenerateGroupRequest;
using rollout::v1::RolloutService;

constexpr absl::Duration kAnswerTimeout = absl::Seconds(20);
constexpr int kAnswerAttempts = 3;

// The answers of one call. Replies share it, and may outlive the call.
class Answers {
 public:
  Answers(const GroupCall& call, const GenerateGroupRequest& request, grpc::ClientContext* context)
      : stub_(RolloutService::NewStub(call.channel)),
        caller_(call.caller),
        run_id_(request.run_id()),
        group_id_(request.group_id()),
        context_(context) {}

  void Send(int32_t index, int32_t turn, const absl::StatusOr<TurnAnswer>& answer)
      ABSL_LOCKS_EXCLUDED(mu_) {
    ContinueCompletionRequest request;
    request.set_run_id(run_id_);
    request.set_group_id(group_id_);
    request.set_index(index);
    request.set_turn(turn);
    if (answer.ok()) {
      request.mutable_token_ids()->Add(answer->token_ids.begin(), answer->token_ids.end());
      request.set_token_hash(HashTokenIds(answer->token_ids));
    } else {
      MutexLock lock(&mu_);
      failed_.emplace(index, answer.status());
    }
    request.set_finish(request.token_ids().empty());
    if (request.finish()) request.clear_token_hash();
    absl::Status sent = Unavailable("not sent");
    for (int attempt = 0; attempt < kAnswerAttempts && absl::IsUnavailable(sent); ++attempt) {
      sent = SendOnce(request);  // safe to repeat: the same answer again changes nothing
    }
    // NOT_FOUND: the completion or its group has ended, which the stream tells.
    if (!sent.ok() && !absl::IsNotFound(sent)) Cancel(sent);
  }

  // The call has ended. Returns why an answer was refused, if one was, and the errors of players.
  std::pair<absl::Status, std::map<int32_t, absl::Status>> Close() ABSL_LOCKS_EXCLUDED(mu_) {
    MutexLock lock(&mu_);
    context_ = nullptr;
    return {refused_, failed_};
  }

 private:
  absl::Status SendOnce(const ContinueCompletionRequest& request) ABSL_LOCKS_EXCLUDED(mu_) {
    grpc::ClientContext context;
    rpc::SetDeadline(context, kAnswerTimeout);
    {
      MutexLock lock(&mu_);
      if (context_ == nullptr) return absl::OkStatus();
      caller_->Identify(&context);
    }
    rollout::v1::ContinueCompletionResponse response;
    return rpc::FromGrpc(stub_->ContinueCompletion(&context, request, &response),
                         absl::StrCat("answer to turn ", request.turn(), " of completion ",
                                      request.index(), " of group ", request.group_id()));
  }

  void Cancel(const absl::Status& why) ABSL_LOCKS_EXCLUDED(mu_) {
    MutexLock lock(&mu_);
    if (context_ == nullptr) return;
    refused_.Update(why);
    context_->TryCancel();
  }

  const std::unique_ptr<RolloutService::Stub> stub_;
  const rpc::CallerChannel* const caller_;  // valid until Close
  const std::string run_id_;
  const int64_t group_id_;

  Mutex mu_;
  grpc::ClientContext* context_ ABSL_GUARDED_BY(mu_);  // of the group's call; null once it ended
  absl::Status refused_ ABSL_GUARDED_BY(mu_);
  std::map<int32_t, absl::Status> failed_ ABSL_GUARDED_BY(mu_);
};

}  // namespace

grpc::Status ReadGroup(const GroupCall& call, const GenerateGroupRequest& request,
                       grpc::ClientContext* context, FinishedGroup* group, absl::Status* checked) {
  const auto stub = RolloutService::NewStub(call.channel);
  std::shared_ptr<Answers> answers;
  if (call.player != nullptr && request.has_turns()) {
    answers = std::make_shared<Answers>(call, request, context);
    call.player->Begin(request);
  }
  const auto reader = stub->GenerateGroup(context, request);
  rollout::v1::GenerateGroupResponse response;
  bool done = false, gave_up = false;
  while (reader->Read(&response)) {
    if (response.has_completion() && checked->ok()) {
      *checked = CheckCompletion(request, response.completion());
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
      const int32_t index = response.turn().index(), turn = response.turn().turn();
      call.player->Play(request, response.turn(),
                        [answers, index, turn](const absl::StatusOr<TurnAnswer>& answer) {
                          answers->Send(index, turn, answer);
                        });
    }
  }
  grpc::Status status = reader->Finish();
  if (answers != nullptr) {
    auto [refused, failed] = answers->Close();
    group->failed_turns = std::move(failed);
    gave_up |= !refused.ok();
    if (checked->ok()) *checked = std::move(refused);
  }
  if (gave_up) return grpc::Status::OK;  // *checked says why
  if (status.ok() && checked->ok() && !done) {
    *checked = DataLoss("the stream ended without GroupDone");
  }
  return status;
}

}  // namespace tandem::trainer
