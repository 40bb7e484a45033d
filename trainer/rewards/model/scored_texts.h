// ScoredTexts: token ids of prompts and completions, packed so that a prompt is computed once, and
// the places where the heads of a reward model read them. It has no loss: the pass is one of
// SupervisedModel::HeadScores. Used by reward_scorer.cc.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "trainer/preferences/step_data.h"
#include "trainer/supervised/supervised_objective.h"

namespace tandem::trainer {

class ScoredTexts : public SupervisedObjective {
 public:
  // Texts that follow each other and have the same prompt are one example, up to `batch_tokens`
  // tokens, so that a row of this length holds it. Places are read at step_ends. The texts must
  // outlive it.
  ScoredTexts(std::span<const LabelledSteps> texts, int64_t num_heads, int64_t batch_tokens);

  int64_t num_examples() const override { return static_cast<int64_t>(begins_.size()) - 1; }
  GroupTokens Example(int64_t example) const override;
  int64_t num_heads() const override { return num_heads_; }
  std::vector<ScorePlace> ScorePlaces(int64_t example) const override;
  void BeginBatch(std::span<const int64_t> /*examples*/, double /*sum_before*/) override {}
  double Loss(int64_t /*example*/, const ExampleScores& /*scores*/, ExampleSlopes* /*slopes*/,
              std::span<MetricSum> /*metrics*/) const override {
    return 0;
  }
  std::vector<std::string> MetricNames() const override { return {}; }

 private:
  std::span<const LabelledSteps> TextsOf(int64_t example) const;

  const std::span<const LabelledSteps> texts_;
  const int64_t num_heads_;
  std::vector<size_t> begins_;  // [examples + 1]: the first text of each
};

}  // namespace tandem::trainer
