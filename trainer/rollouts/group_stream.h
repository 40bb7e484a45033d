// ReadGroup: one GenerateGroup call, from its first message to its last (stages 1-3). Completions
// are checked as they come. Turns go to the group's TurnPlayer, whose answers go back to the server
// by ContinueCompletion, which no thread waits for. Used by rollout_client.cc.
#pragma once

#include <memory>

#include "absl/status/status.h"
#include "proto/rollout.pb.h"

namespace grpc {
class Channel;
class ClientContext;
class Status;
}  // namespace grpc

namespace tandem::rpc {
class CallerChannel;
}

namespace tandem::trainer {

struct FinishedGroup;
class TurnPlayer;

// How the call of one group is made.
struct GroupCall {
  std::shared_ptr<grpc::Channel> channel;
  const rpc::CallerChannel* caller = nullptr;  // identifies the calls that continue completions
  TurnPlayer* player = nullptr;                // null: no turn is expected
};

// Makes the call with `context`, which is ready for it, and fills completions, done and episodes of
// `group`: of a whole group, when its player has answered every turn. Returns how the call ended,
// OK where this side gave it up, and in `checked` what is wrong with what came:
//   DATA_LOSS    CheckCompletion, CheckTurn; a turn without a player; no GroupDone
//   any code of  ContinueCompletion: the server refused an answer, and the call was cancelled
grpc::Status ReadGroup(const GroupCall& call, const rollout::v1::GenerateGroupRequest& request,
                       grpc::ClientContext* context, FinishedGroup* group, absl::Status* checked);

}  // namespace tandem::trainer
