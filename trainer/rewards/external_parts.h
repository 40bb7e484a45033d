// ExternalParts: the components of a reward that take time: programs, services, judges, a model.
// It turns a group into questions, asks each through the pool of its component unless the cache
// knows the answer, and puts the answers together. Used by rewards.cc.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/mutex.h"
#include "trainer/rewards/answer_cache.h"
#include "trainer/rewards/external/question_pool.h"
#include "trainer/rewards/external/reward_question.h"
#include "trainer/rewards/external/reward_tally.h"
#include "trainer/rewards/external/service_call.h"
#include "trainer/rewards/judge/judge_reward.h"
#include "trainer/rewards/reward_options.h"

namespace tandem::trainer {

// Makes the worker that scores by a reward model in this process (model/model_reward.h); it comes
// from outside so that rewards can be made without LibTorch. Called on the worker's thread.
using MakeModelAsker = std::function<std::unique_ptr<Asker>(RewardTally* tally, EndSign* end)>;

// By component: one answer per completion of a group, in order.
using ExternalAnswers = std::map<std::string, std::vector<RewardAnswer>>;

// Thread-safe after Open. Threads: `workers` of each component, once there is something to ask.
class ExternalParts {
 public:
  // The external components that options.weights and options.gold name; null if there is none.
  // Starts and opens nothing, and reads the rubric of a judge. Without `make_model` the component
  // `model` fails when it is asked. `options` must outlive it.
  //   INVALID_ARGUMENT  what a component needs is missing or cannot work (named)
  static absl::StatusOr<std::unique_ptr<ExternalParts>> Create(const RewardOptions& options,
                                                               MakeModelAsker make_model);
  ~ExternalParts();  // Cancel, then ends all threads and programs
  ExternalParts(const ExternalParts&) = delete;
  ExternalParts& operator=(const ExternalParts&) = delete;

  // Opens the cache. Once, before Ask. What a judge cost is kept under `run_id`; empty: it is not.
  // Errors of AnswerCache::Open.
  absl::Status Open(const std::string& run_id);

  // As RewardFunction::Check.
  absl::Status Check(std::string_view row) const;

  // Asks about a group. `done` is called once, on any thread, maybe before Ask returns, also after
  // Cancel.
  using Done = std::function<void(ExternalAnswers)>;
  void Ask(std::shared_ptr<const HeldGroup> group, Done done) ABSL_LOCKS_EXCLUDED(mu_);

  // Ends all questions soon, with CANCELLED; later ones at once.
  void Cancel();

  RewardTally* tally() { return &tally_; }

 private:
  struct Part;       // one component
  struct Gathering;  // the answers of one group
  struct PartGathering;

  ExternalParts(const RewardOptions& options, MakeModelAsker make_model);
  absl::Status AddPart(const std::string& name);
  // What AddPart adds of a function in Python.
  absl::Status AddPython(const std::string& name, Part* part);
  void AskPart(Part& part, const std::shared_ptr<const HeldGroup>& group,
               const std::shared_ptr<Gathering>& whole);
  // Answers from the cache, or joins whoever asks the same now, or has it asked.
  void AskThroughCache(Part& part, RewardQuestion question, QuestionPool::Done done,
                       std::vector<QuestionPool::Asked>* to_ask) ABSL_LOCKS_EXCLUDED(mu_);
  void TakeAnswer(const std::string& key, const RewardAnswer& answer) ABSL_LOCKS_EXCLUDED(mu_);

  const RewardOptions& options_;
  const MakeModelAsker make_model_;  // null: none
  std::string rubric_;
  RewardTally tally_;
  std::unique_ptr<AnswerCache> cache_;  // from Open on
  std::unique_ptr<JudgeBudget> budget_;
  std::vector<PythonFunction> python_functions_;  // of python_pool_
  std::shared_ptr<QuestionPool> python_pool_;     // of all functions in Python, whose parts have it

  Mutex mu_;
  // Questions under way by their key, and who else waits for the answer.
  std::unordered_map<std::string, std::vector<QuestionPool::Done>> asked_ ABSL_GUARDED_BY(mu_);

  std::vector<std::unique_ptr<Part>> parts_;  // last: their threads use all of the above
};

}  // namespace tandem::trainer
