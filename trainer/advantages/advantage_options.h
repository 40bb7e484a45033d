// AdvantageOptions: how the advantage of a token is made of rewards (section trainer.advantage).
// Separate from the code, so that option trees and the train step can include them.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "common/offpolicy/value_targets.h"
#include "common/options/options.h"

namespace tandem::trainer {

// docs/algorithms.md has the sources. The first group compares a completion with the others of its
// group, the second with something else or with nothing, the third chooses what is imitated, the
// fourth makes pairs (loss.kind preference), and the last needs a critic.
enum class AdvantageKind {
  kGroupNorm,
  kMeanOnly,
  kLeaveOneOut,
  kOptimalBaseline,
  kPassAtK,
  kNone,
  kGreedyBaseline,
  kBestOfN,
  kCorrectOnly,
  kBestWorst,
  kGae,
  kVtrace,
  kRetrace
};
constexpr bool NeedsCritic(AdvantageKind kind) { return kind >= AdvantageKind::kGae; }
constexpr bool MakesPairs(AdvantageKind kind) { return kind == AdvantageKind::kBestWorst; }

enum class StdConvention { kSample, kPopulation };

struct AdvantageOptions {
  AdvantageKind kind = AdvantageKind::kGroupNorm;
  StdConvention std_convention = StdConvention::kSample;
  double eps = 1e-4;
  bool drop_zero_variance = false;
  int64_t pass_k = 4;                   // of kPassAtK
  bool whiten = false;                  // over the tokens of the batch
  offpolicy::ValueTargetOptions value;  // of a critic's kinds; gamma also of rewards per token
};
void BindOptions(OptionBinder& binder, AdvantageOptions& options);

// Whether groups of equal rewards leave the batch: by choice, or because they make no pair.
constexpr bool DropsZeroVariance(const AdvantageOptions& options) {
  return options.drop_zero_variance || MakesPairs(options.kind);
}

// Checks what the range of a single field cannot express.
//   INVALID_ARGUMENT  CheckOptions of `value`; drop_zero_variance with a kind for which equal
//                     rewards are no reason to drop; pass_k over the completions of a group;
//                     pairs of groups of one; whiten of what is imitated or of pairs
absl::Status CheckOptions(const AdvantageOptions& options, int64_t completions_per_group);

}  // namespace tandem::trainer
