// How many completions each group gets (start of stage 1). Pure.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "common/options/options.h"

namespace tandem::trainer {

enum class GroupSizeKind {
  kFixed,       // trainer.completions_per_prompt
  kAdaptive,    // more where success is uncertain, with the same number over the groups asked for
  kSequential,  // `min` first, and the rest where their rewards differ
};

// Section trainer.group_size.
struct GroupSizeOptions {
  GroupSizeKind kind = GroupSizeKind::kFixed;
  int64_t min = 4;
  int64_t max = 32;  // of kAdaptive
};
void BindOptions(OptionBinder& binder, GroupSizeOptions& options);

// INVALID_ARGUMENT  completions_per_prompt outside [min, max] of kAdaptive; not above min of
//                   kSequential
absl::Status CheckOptions(const GroupSizeOptions& options, int64_t completions_per_prompt);

// The fewest completions that a group may have.
int64_t SmallestGroup(const GroupSizeOptions& options, int64_t completions_per_prompt);

// Divides `total` completions over groups in proportion to `deviations`, the standard deviations of
// a completion's reward at their prompts: this is Neyman's allocation, under which the sum of the
// variances of the groups' means is smallest (J. R. Statist. Soc. 97, 1934). Each gets `min` to
// `max`. Equal fractions go to the first groups. `total` must lie between min and max per group;
// all equal where every deviation is 0.
std::vector<int64_t> AllocateCompletions(std::span<const double> deviations, int64_t total,
                                         int64_t min, int64_t max);

}  // namespace tandem::trainer
