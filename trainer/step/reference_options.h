// ReferenceOptions: what the KL of the loss or reward is measured against (section
// trainer.reference). Free of LibTorch, so that every reader of a run file can bind them.
#pragma once

#include <cstdint>
#include <string>

#include "common/options/options.h"

namespace tandem::trainer {

// kFrozen  the weights it starts from
// kEma     after each train step decay x itself + (1 - decay) x the policy (as WARP's anchor, Rame
//          et al. 2024, arXiv 2406.16768; soft updates of TR-DPO, arXiv 2404.09656)
// kReset   every so many train steps the policy's weights (ProRL, Liu et al. 2025, arXiv 2505.24864)
enum class ReferenceKind { kFrozen, kEma, kReset };

struct ReferenceOptions {
  ReferenceKind kind = ReferenceKind::kFrozen;
  std::string model;  // Hugging Face directory; empty: trainer.model
  double ema_decay = 0.99;
  int64_t reset_every = 200;
};
void BindOptions(OptionBinder& binder, ReferenceOptions& options);

}  // namespace tandem::trainer
