// CriticOptions: the value model of PPO (section trainer.critic). Read where trainer.advantage.kind
// needs a critic. Free of LibTorch, so that every reader of a run file can bind them.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "common/options/options.h"
#include "trainer/optimizer/optimizer_options.h"

namespace tandem::trainer {

// The name of a head with a few outputs, as in transformers' ForSequenceClassification.
inline constexpr char kScoreWeight[] = "score.weight";

// What the value head stands on: a model of its own, which costs the memory of a second policy, or
// the policy's hidden states, through which the value loss then changes the policy too.
enum class CriticBackbone { kOwn, kShared };

struct CriticOptions {
  CriticBackbone backbone = CriticBackbone::kOwn;
  std::string model;  // of kOwn: directory it starts from; empty: trainer.model
  OptimizerOptions optimizer = {.learning_rate = 1e-5};
  double value_clip = 0.2;        // 0: off
  double loss_coefficient = 0.1;  // of kShared
  int64_t warmup_steps = 0;
};
void BindOptions(OptionBinder& binder, CriticOptions& options);

//   INVALID_ARGUMENT  a model or a warm-up for a shared backbone
absl::Status CheckOptions(const CriticOptions& options);

}  // namespace tandem::trainer
