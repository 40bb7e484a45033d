// StepModels: what a train step computes with and changes, and what outlives its batches: the policy
// with its optimizer, the reference policy and the critic, where there are any. Made by
// train_step.cc.
#pragma once

#include <cstdint>
#include <memory>

#include "common/comm/rank_reducer.h"
#include "trainer/critic/critic.h"
#include "trainer/optimizer/optimizer.h"
#include "trainer/optimizer/placed_policy.h"

namespace tandem::trainer {

struct StepModels {
  std::unique_ptr<PlacedPolicy> policy;
  std::unique_ptr<PlacedPolicy> reference;  // with weights of its own
  bool reference_is_base = false;           // or the policy without its adapters
  std::unique_ptr<AdamW> optimizer;         // of the policy
  std::unique_ptr<Critic> critic;
  comm::RankReducer ranks{nullptr};
  double temperature = 1;                 // of the trained policy
  Rounding rounding = Rounding::kDither;  // of pushes
  uint64_t dropout_seed = 0;              // of adapters that drop inputs; else 0

  bool has_reference() const { return reference != nullptr || reference_is_base; }
  bool trains_head_with_policy() const { return critic != nullptr && critic->shares_backbone(); }
};

}  // namespace tandem::trainer
