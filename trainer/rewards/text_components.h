// TextComponents: the built-in components of a reward: what a completion's text, and those of its
// group, say by themselves. Pure. Used by rewards.cc.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "trainer/rewards/reward.h"
#include "trainer/rewards/reward_options.h"
#include "trainer/rewards/written_number.h"

namespace tandem::trainer {

// What follows the last "####" of a GSM8K answer as a number; without one, the last number.
//   NOT_FOUND  no number
absl::StatusOr<WrittenNumber> Gsm8kNumber(std::string_view text);

// 1 if the completion ended by itself (or needs_stop is off) and its last number is `want`;
// `partial` if any number is; else 0.
double NumberAnswer(const RewardInput& input, const WrittenNumber& want, double partial,
                    bool needs_stop);

// Thread-compatible; const methods may run side by side.
class TextComponents {
 public:
  // `options` must outlive it; its names must be those of components.
  //   INVALID_ARGUMENT  a pattern that does not compile or is missing
  static absl::StatusOr<std::unique_ptr<TextComponents>> Create(const RewardOptions& options);
  ~TextComponents();

  // The value of a component of kind kText for one completion.
  //   INVALID_ARGUMENT  the answer holds no number, where one is compared
  absl::StatusOr<double> Value(const std::string& name, const RewardInput& input) const;

  // The values of a component of kind kGroup for all completions of a group.
  std::vector<double> GroupValues(const std::string& name,
                                  const std::vector<RewardInput>& inputs) const;

 private:
  struct Patterns;
  explicit TextComponents(const RewardOptions& options);

  const RewardOptions& options_;
  const std::unique_ptr<Patterns> patterns_;
};

}  // namespace tandem::trainer
