// ServerModel: a model of a rollout server for the simulation. Groups wait, their prompts are
// computed, and their members decode together. The duration of a decode step depends on how many
// completions run and on the KV that they read. pair_model.cc uses it. Pure. Thread-compatible.
// Memory: one entry per completion in flight.
//
// It differs from the engine in three ways: decoding stops while a prompt is computed (the engine
// mixes both in one step, with the same total work), steps are continuous, and the KV of a group is
// reserved with its true size (the engine estimates it as a share of the worst case).
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <queue>
#include <vector>

namespace tandem::simulate {

// The speed of a server on a machine of its own.
struct ServerSpeed {
  struct Knot {
    double batch = 1;         // completions that decode together
    double step_seconds = 0;  // duration of one step
  };
  std::vector<Knot> knots;  // by rising batch; linear between and beyond, never negative
  double seconds_per_context_token = 0;  // added to a step for each token of KV that it reads
  double prefill_tokens_per_second = 0;  // 0: prompts take no time
  int64_t max_sequences = 64;            // completions that decode together
  int64_t kv_tokens = 0;                 // capacity; 0: unlimited

  // The duration of a decode step of `batch` completions, without reading KV.
  double StepSeconds(double batch) const;
};

struct GroupWork {
  int64_t group = 0;
  int64_t prompt_tokens = 0;     // computed and kept once for the group
  std::vector<int64_t> lengths;  // tokens per completion; the first one comes with the prompt
  int64_t version = 0;           // the server's, when the group was admitted

  int64_t kv_tokens() const;
};

class ServerModel {
 public:
  explicit ServerModel(ServerSpeed speed);

  void Submit(GroupWork work);

  // Seconds of work until a prompt is done or a completion ends. Infinite if it is idle.
  double SecondsToEvent() const;
  // Works for `seconds`, at most SecondsToEvent(). Returns the groups that ended.
  std::vector<GroupWork> Advance(double seconds);

  void Stall(double seconds) { debt_ += busy() ? seconds : 0; }  // decoding stops meanwhile
  void SetVersion(int64_t version) { version_ = version; }
  // Returns all groups in flight, because the server is lost.
  std::vector<GroupWork> Lose();

  bool busy() const { return debt_ > 0 || !running_.empty(); }
  int64_t groups_in_flight() const {
    return static_cast<int64_t>(groups_.size() + waiting_.size());
  }
  double busy_seconds() const { return busy_seconds_; }
  double prefill_seconds() const { return prefill_seconds_; }
  double decoded_tokens() const { return decoded_tokens_; }
  // The mean number of completions that decode together, over decode steps.
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
  std::vector<int64_t> joining_;        // admitted, but the prompt is not done
  std::priority_queue<Ending, std::vector<Ending>, std::greater<>> running_;
  int64_t admitted_sequences_ = 0, reserved_kv_ = 0, version_ = 0;
  double steps_ = 0;    // decode steps so far
  double context_ = 0;  // tokens of KV that a step reads
  double debt_ = 0;     // seconds of prompts and pauses before the next step
  double busy_seconds_ = 0, prefill_seconds_ = 0, decoded_tokens_ = 0;
};

}  // namespace tandem::simulate
