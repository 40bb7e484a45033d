// RewardFunction: a reward per completion, as the weighted sum of named components (stage 3): some
// read the text (text_components.h), some ask a program, a service or a judge (external_parts.h). A
// failed component never becomes reward 0: it masks the completion. Used by reward_queue.h, which
// keeps the trainer's loop from waiting for answers, and by the command line.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/options/options.h"
#include "trainer/rewards/external_parts.h"
#include "trainer/rewards/reward.h"
#include "trainer/rewards/reward_options.h"
#include "trainer/rewards/text_components.h"

namespace tandem::trainer {

// Thread-compatible. Memory and threads: those of the external components.
class RewardFunction {
 public:
  // Starts and opens nothing. `make_model` is for the component `model`; without it that one fails.
  //   INVALID_ARGUMENT  no component, unknown component (names those there are), a pattern that
  //                     does not compile or is missing, hard length not above soft, what an
  //                     external component needs (external_parts.h), a pass_threshold that no
  //                     completion can reach
  static absl::StatusOr<std::unique_ptr<RewardFunction>> Create(
      const RewardOptions& options, MakeModelAsker make_model = nullptr);
  ~RewardFunction();

  // Opens what external components keep on disk. Once, before Score and Ask, which else open it
  // without a run. `run_id`: whose costs count. Errors of AnswerCache::Open.
  absl::Status Open(const std::string& run_id);

  // Loads what external components can only be checked by once: functions in Python, in a process
  // that ends with the call. `row`: the JSON of a line of the data, whose columns they get; empty:
  // unknown. Errors of CheckPythonFunctions.
  absl::Status Check(std::string_view row) const;

  // One result per input of a group, in order. Never fails as a whole. Waits for external
  // components.
  std::vector<Reward> Score(const std::vector<RewardInput>& inputs);

  // Whether a component asks somebody else. If not, Score takes microseconds, and Ask is not called.
  bool is_external() const { return external_ != nullptr; }

  // Asks the external components about a group; `done` gets what Combine takes, on any thread,
  // maybe before Ask returns, also after Cancel.
  void Ask(std::shared_ptr<const HeldGroup> group, ExternalParts::Done done);

  // The rewards of a group from the answers of its external components.
  std::vector<Reward> Combine(const std::vector<RewardInput>& inputs,
                              const ExternalAnswers& answers) const;

  // Questions to external components end soon, and later ones at once: with failures.
  void Cancel();

  // Null without external components.
  RewardTally* tally() { return external_ == nullptr ? nullptr : external_->tally(); }

  const RewardOptions& options() const { return options_; }

 private:
  explicit RewardFunction(const RewardOptions& options)
      : options_(options), names_(ComputedComponents(options)) {}
  // The values of component `name`, capped, of all completions.
  std::vector<RewardAnswer> Values(const std::string& name, const std::vector<RewardInput>& inputs,
                                   const ExternalAnswers& answers) const;
  void Cap(const std::string& name, std::vector<RewardAnswer>* values) const;
  // Adds what the held-out components say, which are the last of `values`.
  void AddGold(size_t index, const std::vector<std::vector<RewardAnswer>>& values,
               Reward* reward) const;
  // Whether the components that judge the answer say that it is right.
  bool IsCorrect(const Reward& reward) const;
  Reward Sum(const RewardInput& input, size_t index,
             const std::vector<std::vector<RewardAnswer>>& values,
             const std::vector<std::vector<double>>& normalised) const;

  const RewardOptions options_;
  const std::vector<std::string> names_;  // of components, in the order of ComputedComponents
  std::vector<std::pair<std::string, double>> judges_;  // who say whether a completion is correct
  std::unique_ptr<TextComponents> text_;
  std::unique_ptr<ExternalParts> external_;  // null: there is none
  bool is_open_ = false;
};

// (value - mean) / (standard deviation + 1e-4) over those values that are there; 0 for the others
// and where all are equal. The deviation is that of a sample.
std::vector<double> NormaliseInGroup(const std::vector<RewardAnswer>& values);

}  // namespace tandem::trainer
