#include "trainer/environments/environment_pool.h"

#include <algorithm>
#include <cstdio>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/log.h"
#include "common/base/stable_random.h"
#include "common/base/status_macros.h"
#include "nlohmann/json.hpp"
#include "trainer/experience/drawn_tokens.h"

namespace tandem::trainer {
namespace {

using nlohmann::ordered_json;

// The number of an episode that says whether an answer of its environment had no room.
constexpr char kOutOfTokens[] = "out_of_tokens";
// What stands before a turn when the ids behind it are made: TurnTemplate cuts it off.
constexpr char kAnyConversation[] = R"([{"role":"user","content":"-"}])";

}  // namespace

// The episodes of one group. Replies of its workers share it, and may outlive the group's call.
class EnvironmentPool::GroupEpisodes : public TurnPlayer,
                                       public std::enable_shared_from_this<GroupEpisodes> {
 public:
  GroupEpisodes(EnvironmentPool* pool, EpisodeStart start)
      : pool_(pool), start_(std::move(start)) {}
  ~GroupEpisodes() override {
    for (const auto& [index, one] : episodes_) one.worker->Close(one.number);
  }

  void Begin(int32_t first_completion, int32_t num_completions) override {
    MutexLock lock(&mu_);
    for (const auto& [index, one] : episodes_) one.worker->Close(one.number);
    episodes_.clear();
    for (int32_t i = first_completion; i < first_completion + num_completions; ++i) {
      One& one = episodes_[i];
      {
        MutexLock of_pool(&pool_->mu_);
        one.number = pool_->next_episode_++;
      }
      const auto worker = static_cast<size_t>(one.number) % pool_->workers_.size();
      one.worker = pool_->workers_[worker].get();
      one.worker->Open(one.number, start_);
    }
  }

  void Play(PlayedTurn turn, Reply reply) override {
    EnvironmentWorker* worker = nullptr;
    int64_t number = 0;
    {
      MutexLock lock(&mu_);
      const One& one = episodes_.at(turn.index);
      worker = one.worker;
      number = one.number;
    }
    TurnText text = {
        .turn = turn.turn, .text = turn.text, .was_cut = turn.was_cut, .is_last = turn.is_last};
    // Weakly: a group that nobody waits for ends, and closes its episodes.
    worker->Step(number, std::move(text),
                 [self = weak_from_this(), worker, number, turn = std::move(turn),
                  reply = std::move(reply)](absl::StatusOr<EnvironmentReply> said) mutable {
                   const auto group = self.lock();
                   if (group == nullptr) return reply(Cancelled("the group has ended"));
                   auto answer = group->Answer(number, turn, std::move(said));
                   if (answer.ok() && answer->has_no_room) {
                     return group->Finish(worker, number, turn, std::move(reply));
                   }
                   reply(answer.ok() ? absl::StatusOr<TurnAnswer>(std::move(answer->answer))
                                     : answer.status());
                 });
  }

  std::shared_ptr<const Episode> Outcome(const rollout::v1::Completion& completion) override {
    MutexLock lock(&mu_);
    const One& one = episodes_.at(completion.index());
    auto outcome = std::make_shared<Episode>(one.outcome);
    outcome->turn_ends = TurnEnds(completion);
    outcome->messages_json =
        one.messages.dump(-1, ' ', false, ordered_json::error_handler_t::replace);
    return outcome;
  }

 private:
  struct One {
    EnvironmentWorker* worker = nullptr;
    int64_t number = 0;  // at the worker
    Episode outcome = {.info = {{kOutOfTokens, 0}}};
    ordered_json messages = ordered_json::array();
  };

  struct Answered {
    TurnAnswer answer;
    bool has_no_room = false;  // what the environment said does not fit
  };

  // The turn is the last one after all, and the environment says what the episode is worth.
  void Finish(EnvironmentWorker* worker, int64_t number, const PlayedTurn& turn, Reply reply) {
    worker->Finish(number, turn.turn,
                   [self = weak_from_this(), number, index = turn.index,
                    reply = std::move(reply)](const absl::StatusOr<EnvironmentReply>& said) {
                     const auto group = self.lock();
                     if (group == nullptr) return reply(Cancelled("the group has ended"));
                     reply(group->TakeEnd(number, index, said));
                   });
  }

  absl::StatusOr<TurnAnswer> TakeEnd(int64_t number, int32_t index,
                                     const absl::StatusOr<EnvironmentReply>& said) {
    MutexLock lock(&mu_);
    One& one = episodes_.at(index);
    if (one.number != number) return Cancelled("the episode began anew");
    if (!said.ok()) {
      one.outcome.failure.Update(said.status());
      return said.status();
    }
    one.outcome.turn_rewards.back() += said->reward.value_or(0);
    one.outcome.seconds += said->seconds;
    AddInfo(said->info, &one.outcome);
    return TurnAnswer{};
  }

  // Notes what the environment said of a turn, and makes the ids that follow it.
  absl::StatusOr<Answered> Answer(int64_t number, const PlayedTurn& turn,
                                  absl::StatusOr<EnvironmentReply> said) {
    MutexLock lock(&mu_);
    One& one = episodes_.at(turn.index);
    if (one.number != number) return Cancelled("the episode began anew");
    Episode& outcome = one.outcome;
    one.messages.push_back({{"role", "assistant"}, {"content", turn.text}});
    if (!said.ok()) {
      outcome.failure.Update(said.status());  // the first stands
      return said.status();
    }
    outcome.turn_rewards.push_back(said->reward.value_or(0));
    outcome.is_per_turn = pool_->options_.turn_rewards == TurnRewards::kPerTurn;
    outcome.seconds += said->seconds;
    AddInfo(said->info, &outcome);
    if (said->done || turn.is_last) return Answered{};
    absl::StatusOr<std::vector<int32_t>> ids =
        pool_->template_.IdsAfter(kAnyConversation, said->messages_json, turn.ended_by_token);
    if (!ids.ok()) {
      outcome.failure = ids.status();
      return ids.status();
    }
    // There is no room for the answer and a token behind it.
    if (std::ssize(*ids) > turn.num_tokens_left) {
      SetInfo(kOutOfTokens, 1, &outcome);
      return Answered{.has_no_room = true};
    }
    for (ordered_json& message : ordered_json::parse(said->messages_json)) {
      one.messages.push_back(std::move(message));
    }
    return Answered{.answer = {*std::move(ids)}};
  }

  // A later turn's number takes the place of an earlier one's.
  static void SetInfo(const std::string& name, double value, Episode* outcome) {
    const auto known =
        std::ranges::find(outcome->info, name, &std::pair<std::string, double>::first);
    if (known == outcome->info.end()) {
      outcome->info.emplace_back(name, value);
    } else {
      known->second = value;
    }
  }

  static void AddInfo(const std::vector<std::pair<std::string, double>>& info, Episode* outcome) {
    for (const auto& [name, value] : info) {
      if (!name.empty() && name != kOutOfTokens) SetInfo(name, value, outcome);
    }
  }

  EnvironmentPool* const pool_;
  const EpisodeStart start_;

  Mutex mu_;
  std::map<int32_t, One> episodes_ ABSL_GUARDED_BY(mu_);  // by index of the completion
};

EnvironmentPool::EnvironmentPool(const EnvironmentOptions& options, TurnTemplate turns)
    : options_(options), template_(std::move(turns)) {}

EnvironmentPool::~EnvironmentPool() { Cancel(); }

absl::StatusOr<std::unique_ptr<EnvironmentPool>> EnvironmentPool::Create(
    const EnvironmentOptions& options, const Tokenizer* tokenizer,
    const std::vector<int32_t>& end_ids, const std::string& chat_template) {
  TANDEM_ASSIGN_OR_RETURN(TurnTemplate turns, TurnTemplate::Create(tokenizer, end_ids));
  std::unique_ptr<EnvironmentPool> pool(new EnvironmentPool(options, std::move(turns)));
  for (int64_t i = 0; i < options.workers; ++i) {
    pool->workers_.push_back(std::make_unique<EnvironmentWorker>(
        options, chat_template,
        [pool = pool.get()](const absl::Status& failure, const std::string& traceback) {
          pool->NoteRaised(failure, traceback);
        }));
  }
  return pool;
}

std::shared_ptr<TurnPlayer> EnvironmentPool::PlayGroup(const experience::v1::Prompt& prompt,
                                                       int64_t run_seed) {
  constexpr uint64_t kSeedBits = 0x7fffffff;  // that every generator of Python takes
  const uint64_t seed =
      StableHash({static_cast<uint64_t>(run_seed), static_cast<uint64_t>(prompt.index()),
                  static_cast<uint64_t>(prompt.epoch())});
  return std::make_shared<GroupEpisodes>(this, EpisodeStart{.row_json = prompt.source_json(),
                                                            .prompt = prompt.text(),
                                                            .seed = seed & kSeedBits});
}

void EnvironmentPool::Cancel() {
  for (const auto& worker : workers_) worker->Cancel();
}

void EnvironmentPool::NoteRaised(const absl::Status& failure, const std::string& traceback) {
  {
    MutexLock lock(&mu_);
    if (!seen_.insert(std::string(failure.message())).second) return;
    events_.push_back({"environment_failed",
                       absl::StrCat(failure.message(), traceback.empty() ? "" : "\n", traceback)});
  }
  log::Warning("an environment failed; this is told once for each message",
               {{"error", std::string(failure.message())}});
  if (!traceback.empty()) std::fprintf(stderr, "%s\n", traceback.c_str());
}

std::vector<EnvironmentEvent> EnvironmentPool::TakeEvents() {
  MutexLock lock(&mu_);
  return std::exchange(events_, {});
}

}  // namespace tandem::trainer
