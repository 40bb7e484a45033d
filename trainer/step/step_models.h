// StepModels: what a train step computes with and changes, and what outlives its batches: the policy
// with its optimizer, the frozen reference policy and the critic, where there are any. Made by
// train_step.cc.
#pragma once

#include <memory>

#include "common/comm/rank_reducer.h"
#include "trainer/critic/critic.h"
#include "trainer/optimizer/optimizer.h"
#include "trainer/optimizer/placed_policy.h"

namespace tandem::trainer {

struct StepModels {
  std::unique_ptr<PlacedPolicy> policy, reference;
  std::unique_ptr<AdamW> optimizer;  // of the policy
  std::unique_ptr<Critic> critic;
  comm::RankReducer ranks{nullptr};
  double temperature = 1;                 // of the trained policy
  Rounding rounding = Rounding::kDither;  // of pushes

  bool trains_head_with_policy() const { return critic != nullptr && critic->shares_backbone(); }
};

}  // namespace tandem::trainer
