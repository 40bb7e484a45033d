// What the trainer and a process that plays environments (python/tandem_rl/environments/worker.py)
// say to each other, a JSON object a line:
//   -> {"environment":{"kind":"python","spec":"guess.py:Guess"},"kwargs":{..},
//       "chat_template":"..","max_turns":8,"row":{..}}                          once
//   <- {"ready":true,"tools":[{..}]}                  or {"error":"..","traceback":".."}
//   -> {"open":12,"row":{..},"prompt":"..","seed":5,
//       "history":[{"text":"..","messages":[..]}]}    an episode begins
//   <- {"episode":12,"turn":0,"messages":[..]}        what its reset gave
//   -> {"step":12,"turn":1,"text":"..","finish_reason":"stop","is_last":false}
//   <- {"episode":12,"turn":1,"messages":[..],"reward":0.5,"done":false,"info":{"name":1.0},
//       "seconds":0.01}                               or with "error" and "traceback" of the episode
//   -> {"finish":12,"turn":1}                         what answered this turn has no room, so that no
//                                                     turn follows; the reply is as that to a step
//   -> {"close":12}                                   it is over; no reply
//   -> {"end":true}                                   the process closes what is open, and ends
//   -> {"rows":{"count":200,"first_seed":0}}
//   <- {"row":{..}} for each, then {"rows":200}       or {"error":".."}
// An episode is sent nothing while it owes a reply. `history`: the turns of one that was played in a
// process that ended; they are played again before the reply. The form is private to a version of
// Tandem. Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "trainer/environments/environment_options.h"

namespace tandem::trainer {

// `chat_template`: of the model, in whose format it calls tools; may be empty. `row_json`: a line of
// the data, from which the process knows the columns; empty: unknown.
std::string EnvironmentHello(const EnvironmentOptions& options, std::string_view chat_template,
                             std::string_view row_json = {});

// The schemas of the environment's tools, a JSON array; empty: it has none.
//   FAILED_PRECONDITION  the process reports why it cannot play; `*traceback` is the whole
//   INVALID_ARGUMENT     it is no such line
absl::StatusOr<std::string> ReadEnvironmentReady(std::string_view line, std::string* traceback);

// What an episode begins with. Completions of one group have the same.
struct EpisodeStart {
  std::string row_json;               // the line of the data; empty: none
  std::optional<std::string> prompt;  // as rendered; the first observation must be in it
  uint64_t seed = 0;
};

// A turn of the model, and the messages that answered it.
struct AnsweredTurn {
  std::string text;
  std::string messages_json;
};

std::string OpenLine(int64_t episode, const EpisodeStart& start,
                     const std::vector<AnsweredTurn>& history);

struct TurnText {
  int32_t turn = 0;  // from 1
  std::string text;
  bool was_cut = false;  // by a limit of tokens
  bool is_last = false;  // no other turn can follow
};
std::string StepLine(int64_t episode, const TurnText& turn);
std::string FinishLine(int64_t episode, int32_t turn);
std::string EndLine();
std::string CloseLine(int64_t episode);
std::string RowsLine(int64_t count, int64_t first_seed);

// What a process says of one episode.
struct EnvironmentReply {
  int64_t episode = 0;
  int32_t turn = 0;              // that it answers; 0: the episode was opened
  absl::Status failure;          // ABORTED: the environment raised; says what and where
  std::string traceback;         // of it
  std::string messages_json;     // a JSON array, not empty unless the episode is over or was opened
  std::optional<double> reward;  // of the turn
  bool done = false;
  std::vector<std::pair<std::string, double>> info;
  double seconds = 0;
};
//   INVALID_ARGUMENT  no such line
absl::StatusOr<EnvironmentReply> ReadEnvironmentReply(std::string_view line);

// A row of data as JSON; none: it was the last.
//   ABORTED           the environment raised
//   INVALID_ARGUMENT  no such line
absl::StatusOr<std::optional<std::string>> ReadRow(std::string_view line);

}  // namespace tandem::trainer
