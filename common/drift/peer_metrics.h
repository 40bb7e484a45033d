// PeerMetrics: a step's drift under the metric names of other systems, with their formulas, for
// users who compare with dashboards of those systems. It has only metrics that can be computed
// exactly from a record, and leaves out names for which the run's correction has no counterpart in
// that system (docs/metrics.md). Pure.
//
// The values are those that the systems compute over one batch on one rank. Tokens are the
// record's: trained, with finite log-probs. Sources, as of 2026-11: verl
// verl/trainer/ppo/rollout_corr_helper.py and verl/utils/debug/metrics.py; NeMo-RL
// nemo_rl/algorithms/loss/loss_functions.py; TRL trl/trainer/grpo_trainer.py; prime-rl
// src/prime_rl/trainer/rl/train.py and utils.py.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "common/capture/token_record.h"
#include "common/offpolicy/correction_options.h"

namespace tandem::offpolicy {

enum class Peer { kVerl, kNemoRl, kTrl, kPrimeRl };

//   INVALID_ARGUMENT  not one of verl, nemo_rl, trl, prime_rl
absl::StatusOr<Peer> ParsePeer(const std::string& name);

struct PeerSettings {
  // The correction that the other system is assumed to use: the same thresholds, and its kind with
  // the same effect.
  CorrectionOptions correction;
  // True with one optimizer update per step; the current policy then is the proximal policy.
  // prime-rl compares with the current policy, and so does verl in bypass mode.
  bool one_update = true;
};

// ("rollout_corr/k3_kl", value), ...; NaN where the other system has NaN. Empty for a record
// without tokens.
std::vector<std::pair<std::string, double>> PeerMetrics(Peer peer, const TokenRecord& record,
                                                        const PeerSettings& settings);

}  // namespace tandem::offpolicy
