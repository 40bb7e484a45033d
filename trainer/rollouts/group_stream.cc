#include "trainer/rollouts/group_stream.h"

#include <grpcpp/grpcpp.h>

#include <deque>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

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

  // Plays a turn when those of its completion before it were answered. The answer goes to the
  // server, unless the completion has ended.
  void Play(TurnPlayer& player, PlayedTurn turn, bool has_ended) ABSL_LOCKS_EXCLUDED(mu_) {
    {
      MutexLock lock(&mu_);
      ++num_open_;
      Turns& turns = turns_[turn.index];
      turns.num_asked = turn.turn;
      turns.has_ended |= has_ended;
      turns.waiting.push_back(std::move(turn));
      if (std::exchange(turns.is_played, true)) return;
      turn = std::move(turns.waiting.front());
      turns.waiting.pop_front();
    }
    PlayNow(player, std::move(turn));
  }

  // Whether what was answered is what stands in the completion: a server may have had its answers
  // before this call, from a trainer that ended since.
  bool IsAnsweredSo(const rollout::v1::Completion& completion) ABSL_LOCKS_EXCLUDED(mu_) {
    std::vector<int32_t> given;
    const std::vector<int32_t> turns = TurnsOf(completion);
    for (size_t t = 0; t < turns.size(); ++t) {
      if (turns[t] == 0) given.push_back(completion.token_ids(static_cast<int>(t)));
    }
    MutexLock lock(&mu_);
    return given == turns_[completion.index()].answers;
  }

  int32_t NumAsked(int32_t index) ABSL_LOCKS_EXCLUDED(mu_) {
    MutexLock lock(&mu_);
    return turns_[index].num_asked;
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
  // The turns of one completion.
  struct Turns {
    int32_t num_asked = 0;
    bool is_played = false;  // one of them is
    bool has_ended = false;  // the completion came whole
    std::deque<PlayedTurn> waiting;
    std::vector<int32_t> answers;  // ids, of all turns
  };

  void PlayNow(TurnPlayer& player, PlayedTurn turn) {
    const int32_t index = turn.index, number = turn.turn;
    const bool is_last = turn.is_last;
    player.Play(std::move(turn), [answers = shared_from_this(), &player, index, number,
                                  is_last](absl::StatusOr<TurnAnswer> answer) {
      if (answer.ok() && is_last) answer->token_ids.clear();
      answers->TakeReply(player, index, number, answer);
    });
  }

  // The next turn of the completion is played; none after a failure.
  void TakeReply(TurnPlayer& player, int32_t index, int32_t turn,
                 const absl::StatusOr<TurnAnswer>& answer) ABSL_LOCKS_EXCLUDED(mu_) {
    std::optional<PlayedTurn> next;
    bool has_ended = false;
    {
      MutexLock lock(&mu_);
      Turns& turns = turns_[index];
      has_ended = turns.has_ended;
      if (answer.ok()) {
        turns.answers.insert(turns.answers.end(), answer->token_ids.begin(),
                             answer->token_ids.end());
      }
      if (answer.ok() && !turns.waiting.empty()) {
        next = std::move(turns.waiting.front());
        turns.waiting.pop_front();
      } else {
        num_open_ -= std::ssize(turns.waiting);
        turns.waiting.clear();
        turns.is_played = false;
      }
    }
    if (!has_ended) Send(index, turn, answer);
    if (next.has_value()) PlayNow(player, *std::move(next));
    MutexLock lock(&mu_);
    --num_open_;
    changed_.NotifyAll();
  }

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

  const std::unique_ptr<RolloutService::Stub> stub_;
  const rpc::CallerChannel* const caller_;  // valid until Close
  const std::string run_id_;
  const int64_t group_id_;

  Mutex mu_;
  CondVar changed_;
  grpc::ClientContext* context_ ABSL_GUARDED_BY(mu_);  // of the group's call; null once it ended
  absl::Status refused_ ABSL_GUARDED_BY(mu_);
  int64_t num_open_ ABSL_GUARDED_BY(mu_) = 0;            // turns without a reply
  std::map<int32_t, Turns> turns_ ABSL_GUARDED_BY(mu_);  // by index of the completion
};

PlayedTurn MakePlayedTurn(const rollout::v1::Turn& turn) {
  return {.index = turn.index(),
          .turn = turn.turn(),
          .text = turn.text(),
          .ended_by_token = turn.finish_reason() == rollout::v1::FINISH_REASON_STOP,
          .num_tokens_left = turn.num_tokens_left()};
}

// The turns of a whole completion from turn `first` on: the last one, which no turn can follow, and
// before it those that the server did not send.
std::vector<PlayedTurn> TurnsFrom(const rollout::v1::Completion& completion, int32_t first) {
  std::vector<PlayedTurn> turns;
  int32_t turn = 0;
  for (const rollout::v1::Segment& segment : completion.segments()) {
    if (segment.given() || ++turn < first) continue;
    turns.push_back({.index = completion.index(),
                     .turn = turn,
                     .text = segment.text(),
                     .ended_by_token = true,
                     .num_tokens_left = std::numeric_limits<int32_t>::max()});
  }
  if (!HasTurns(completion)) {
    turns.push_back({.index = completion.index(), .turn = 1, .text = completion.text()});
  }
  turns.back().ended_by_token = completion.finish_reason() == rollout::v1::FINISH_REASON_STOP;
  turns.back().was_cut = IsTruncated(completion);
  turns.back().is_last = true;
  return turns;
}

// What became of a completion. Masks the rewards of an environment that played another episode than
// the one that the completion is of.
std::shared_ptr<const Episode> OutcomeOf(TurnPlayer& player, Answers& answers,
                                         const rollout::v1::Completion& completion) {
  auto outcome = player.Outcome(completion);
  const bool was_stopped = completion.finish_reason() == rollout::v1::FINISH_REASON_STOPPED_EARLY;
  if (!outcome->failure.ok() || was_stopped || answers.IsAnsweredSo(completion)) return outcome;
  auto failed = std::make_shared<Episode>(*outcome);
  failed->failure = Aborted(
      "the environment did not repeat itself: the server had the completion already, and its turns "
      "were answered otherwise: make reset and step depend on the seed, the row and the turns "
      "alone");
  return failed;
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
      if (checked->ok() && answers != nullptr) {
        const int32_t asked = answers->NumAsked(completion.index());
        if (asked < NumTurns(completion)) {
          for (PlayedTurn& turn : TurnsFrom(completion, asked + 1)) {
            answers->Play(*call.player, std::move(turn), /*has_ended=*/true);
          }
        }
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
      answers->Play(*call.player, MakePlayedTurn(response.turn()), /*has_ended=*/false);
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
      group->episodes[completion.index()] = OutcomeOf(*call.player, *answers, completion);
    }
  }
  return status;
}

}  // namespace tandem::trainer
