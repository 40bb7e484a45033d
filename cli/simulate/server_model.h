// ServerModel: a rollout server as the simulation sees it: groups wait, their prompt is computed,
// their members decode together, each step at a cost that depends on how many run and on the KV
// they read. Used by pair_model.cc. Pure; Thread-compatible. Memory: one entry a completion in
// flight.
//
// Differences from the engine, on purpose: a prompt stops decoding until it is computed (the engine
// mixes both in one step, at the same total of work), steps are continuous, and a group's KV is
// reserved at its true size (the engine learns a share of the worst case).
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <queue>
#include <vector>

namespace tandem::simulate {

// What a server costs. Seconds are of the server alone on its machine.
struct ServerSpeed {
  struct Knot {
    double batch = 1;         // completions that decode together
    double step_seconds = 0;  // of one step of them
  };
  std::vector<Knot> knots;  // by rising batch; straight lines between and beyond, never less than 0
  double seconds_per_context_token = 0;  // of a step, for each token of KV it reads
  double prefill_tokens_per_second = 0;  // 0: prompts cost nothing
  int64_t max_sequences = 64;            // that decode together
  int64_t kv_tokens = 0;                 // room; 0: without bound

  // One decode step of `batch` completions without its KV.
  double StepSeconds(double batch) const;
};

struct GroupWork {
  int64_t group = 0;
  int64_t prompt_tokens = 0;     // computed and kept once for the group
  std::vector<int64_t> lengths;  // tokens of each completion, the first drawn with the prompt
  int64_t version = 0;           // the server's, when the group was admitted

  int64_t kv_tokens() const;
};

class ServerModel {
 public:
  explicit ServerModel(ServerSpeed speed);

  void Submit(GroupWork work);

  // Work until something changes (a prompt is done, a completion ends); infinite when idle.
  double SecondsToEvent() const;
  // Works `seconds`, at most SecondsToEvent(). Returns the groups that ended with it.
  std::vector<GroupWork> Advance(double seconds);

  void Stall(double seconds) { debt_ += busy() ? seconds : 0; }  // no step can run
  void SetVersion(int64_t version) { version_ = version; }
  // Gives back all groups in flight: the server is lost.
  std::vector<GroupWork> Lose();

  bool busy() const { return debt_ > 0 || !running_.empty(); }
  int64_t groups_in_flight() const {
    return static_cast<int64_t>(groups_.size() + waiting_.size());
  }
  double busy_seconds() const { return busy_seconds_; }
  double prefill_seconds() const { return prefill_seconds_; }
  double decoded_tokens() const { return decoded_tokens_; }
  // Mean number of completions that decode together, over decode steps.
  double mean_batch() const { return steps_ > 0 ? decoded_tokens_ / steps_ : 0; }

 private:
  struct InFlight {
    GroupWork work;
    int64_t running = 0;
  };
  struct Ending {
    double step = 0;  // counted as steps_ is
    int64_t group = 0, length = 0;
    bool operator>(const Ending& other) const {
      return step != other.step ? step > other.step : group > other.group;
    }
  };

  void Admit();
  void Join();
  double StepsIn(double seconds) const;
  std::vector<GroupWork> TakeEnded();

  const ServerSpeed speed_;
  std::deque<GroupWork> waiting_;
  std::map<int64_t, InFlight> groups_;  // admitted
  std::vector<int64_t> joining_;        // admitted, prompt not done
  std::priority_queue<Ending, std::vector<Ending>, std::greater<>> running_;
  int64_t admitted_sequences_ = 0, reserved_kv_ = 0, version_ = 0;
  double steps_ = 0;    // decode steps so far
  double context_ = 0;  // tokens of KV that a step reads
  double debt_ = 0;     // seconds of prompts and pauses before the next step
  double busy_seconds_ = 0, prefill_seconds_ = 0, decoded_tokens_ = 0;
};

}  // namespace tandem::simulate
