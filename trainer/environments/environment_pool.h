// EnvironmentPool: plays the completions of a run in its environment. It makes a TurnPlayer for each
// group, whose episodes it shares out among its processes, and turns what the environment says into
// the ids that the model is given next. Used by group_collector.cc and evaluation.cc.
#pragma once

#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/mutex.h"
#include "common/tokenizer/tokenizer.h"
#include "proto/experience.pb.h"
#include "trainer/environments/environment_options.h"
#include "trainer/environments/environment_worker.h"
#include "trainer/environments/turn_player.h"
#include "trainer/environments/turn_template.h"

namespace tandem::trainer {

// What happened since the last look, for the events of the run.
struct EnvironmentEvent {
  std::string kind;  // environment_failed
  std::string message;
};

// Thread-safe. Threads: one for each of options.workers, from its first episode on.
class EnvironmentPool {
 public:
  // Starts nothing. `options` and `tokenizer` must outlive it. `end_ids`: those that end a turn of
  // the model (ModelConfig::eos_token_ids).
  //   INVALID_ARGUMENT, UNIMPLEMENTED  the model's chat template cannot show turns (TurnTemplate)
  static absl::StatusOr<std::unique_ptr<EnvironmentPool>> Create(
      const EnvironmentOptions& options, const Tokenizer* tokenizer,
      const std::vector<int32_t>& end_ids, const std::string& chat_template);
  ~EnvironmentPool();
  EnvironmentPool(const EnvironmentPool&) = delete;
  EnvironmentPool& operator=(const EnvironmentPool&) = delete;

  // Plays the completions of a group of `prompt`. All of them begin alike, by a seed of the run's
  // and of the prompt with its epoch: held-out prompts begin alike in every evaluation. The pool
  // must outlive it.
  std::shared_ptr<TurnPlayer> PlayGroup(const experience::v1::Prompt& prompt, int64_t run_seed);

  // Ends all episodes: what waits, and what comes later, is answered with CANCELLED.
  void Cancel();

  std::vector<EnvironmentEvent> TakeEvents() ABSL_LOCKS_EXCLUDED(mu_);

 private:
  class GroupEpisodes;

  EnvironmentPool(const EnvironmentOptions& options, TurnTemplate turns);
  void NoteRaised(const absl::Status& failure, const std::string& traceback)
      ABSL_LOCKS_EXCLUDED(mu_);

  const EnvironmentOptions& options_;
  const TurnTemplate template_;

  Mutex mu_;
  int64_t next_episode_ ABSL_GUARDED_BY(mu_) = 0;
  std::vector<EnvironmentEvent> events_ ABSL_GUARDED_BY(mu_);
  std::set<std::string> seen_ ABSL_GUARDED_BY(mu_);          // messages of events
  std::vector<std::unique_ptr<EnvironmentWorker>> workers_;  // last: their threads use the above
};

}  // namespace tandem::trainer
