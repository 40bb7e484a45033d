// RewardScorer: one reward model, or an ensemble of several directories or heads, that scores
// texts. Used by the component `model` (model_reward.h), the service (reward_service.h) and the
// commands that score or rank completions. Free of LibTorch.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/tokenizer/tokenizer.h"
#include "trainer/preferences/step_data.h"
#include "trainer/rewards/model/model_options.h"
#include "trainer/rewards/model/reward_model.h"

namespace tandem::trainer {

// A completion and its prompt, as texts that each model encodes with its own tokenizer, or as ids
// of the only one.
struct TextToScore {
  std::string prompt;              // as rendered by a chat template, or plain
  std::vector<std::string> steps;  // of the completion; an outcome model reads them as one text
  bool is_truncated = false;       // an outcome model reads no end token after it
  std::vector<int32_t> prompt_ids, completion_ids;  // in place of the texts; no steps
};

struct ModelReward {
  double reward = 0;            // after both aggregations
  double disagreement = 0;      // standard deviation over the ensemble; the mean over steps
  std::vector<double> members;  // rewards of the ensemble's members
  std::vector<double> steps;    // process: the probabilities that the steps are right
};

// Use from one thread at a time. Memory: the weights in fp32 and a cast of them, and the
// activations of one row of options.batch_tokens.
class RewardScorer {
 public:
  // Loads all directories.
  //   NOT_FOUND         no such directory, or a file of it is missing
  //   INVALID_ARGUMENT  no reward model (named); outcome and process models in one ensemble
  //   others of ReadRewardModel and SupervisedModel::Create
  static absl::StatusOr<std::unique_ptr<RewardScorer>> Load(const RewardModelOptions& options);
  ~RewardScorer();
  RewardScorer(const RewardScorer&) = delete;
  RewardScorer& operator=(const RewardScorer&) = delete;

  RewardModelKind kind() const { return kind_; }
  int64_t num_members() const;  // heads over all directories
  // The tokenizer of the first directory.
  const Tokenizer& tokenizer() const;
  const RewardModelOptions& options() const { return options_; }

  // One result per text, in order. Texts that follow each other and have the same prompt share its
  // computation. A process model's text without steps has reward 0, and no step.
  //   INVALID_ARGUMENT  the prompt has no tokens; more tokens than a model's context; ids where
  //                     there are several directories, or outside of the vocabulary
  //   INTERNAL          a kernel failed (for all texts)
  std::vector<absl::StatusOr<ModelReward>> Score(std::span<const TextToScore> texts);

  // The texts of the steps of a completion, and where they end in it (options().split). For an
  // outcome model the whole text is one.
  //   INVALID_ARGUMENT  as StepSplitter::Split
  absl::StatusOr<std::vector<StepRange>> Split(std::string_view completion) const;

 private:
  struct Member;
  explicit RewardScorer(const RewardModelOptions& options);

  // The logits of the heads of each encoded text, [places, K].
  absl::StatusOr<std::vector<std::vector<double>>> Logits(Member& member,
                                                          std::span<const LabelledSteps> texts);
  ModelReward Aggregate(const std::vector<std::vector<double>>& by_member, size_t num_places) const;

  const RewardModelOptions options_;
  RewardModelKind kind_ = RewardModelKind::kOutcome;
  std::unique_ptr<StepSplitter> splitter_;
  std::vector<std::unique_ptr<Member>> members_;  // a directory each
};

}  // namespace tandem::trainer
