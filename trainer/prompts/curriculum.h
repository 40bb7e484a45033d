// Curriculum: which prompt a group gets (start of stage 1). Every choice is a function of the run's
// seed, the group's id, and what was counted before, so that a run that is resumed goes on with the
// same prompts.
#pragma once

#include <cstdint>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/options/options.h"
#include "proto/experience.pb.h"
#include "trainer/prompts/success_counts.h"

namespace tandem::trainer {

enum class CurriculumKind {
  kNone,        // every prompt once an epoch, PromptSource::At
  kWeighted,    // drawn in proportion to a weight of its success rate
  kEasyToHard,  // drawn evenly from the easiest, whose share grows
};

enum class CurriculumWeight {
  kVariance,  // E[p (1 - p)]: where rewards differ most
  kFailure,   // 1 - E[p]: prioritized sampling of Kimi k1.5, arXiv 2501.12599, section 2.3.4
};

// Section trainer.curriculum.
struct CurriculumOptions {
  CurriculumKind kind = CurriculumKind::kNone;
  CurriculumWeight weight = CurriculumWeight::kVariance;
  double floor = 0.1;                     // least weight, over the largest possible
  double fading = 0.5;                    // SuccessCounts
  std::string difficulty = "difficulty";  // field of a prompt's line, of kEasyToHard
  double start_share = 0.2;
  int64_t ramp_steps = 100;
};
void BindOptions(OptionBinder& binder, CurriculumOptions& options);

// The share of the prompts, easiest first, that kEasyToHard draws from at `step`: start_share at
// step 0, growing evenly to 1 at ramp_steps (a pacing function; Bengio et al. 2009).
double SharedPrompts(const CurriculumOptions& options, int64_t step);

// Thread-compatible.
class Curriculum {
 public:
  // `prompts` in file order.
  //   INVALID_ARGUMENT  kEasyToHard, and a line has no such field or no number there (its line)
  static absl::StatusOr<std::unique_ptr<Curriculum>> Create(
      const CurriculumOptions& options, uint64_t seed,
      std::span<const experience::v1::Prompt> prompts);

  // The positions of the prompts for `num_groups` groups from `first_group` on, asked for at train
  // step `step`. Prompts of `under_way`, and those chosen before, are avoided where a few further
  // draws find another. Not for kNone.
  std::vector<int64_t> Choose(int64_t first_group, int64_t num_groups, int64_t step,
                              const SuccessCounts& counts, std::set<int64_t> under_way) const;

 private:
  Curriculum(const CurriculumOptions& options, uint64_t seed) : options_(options), seed_(seed) {}
  double WeightOf(int64_t prompt, const SuccessCounts& counts) const;

  const CurriculumOptions options_;
  const uint64_t seed_;
  std::vector<int64_t> by_difficulty_;  // positions, easiest first; of kEasyToHard
};

}  // namespace tandem::trainer
