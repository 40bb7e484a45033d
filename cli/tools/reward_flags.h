// --reward NAME[=WEIGHT] of commands that judge completions as a run does.
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "trainer/rewards/reward_options.h"

namespace tandem::cli {

CLI::Option* AddRewardFlag(CLI::App* sub, std::vector<std::string>& rewards);

// Replaces the weights of `options`, unless there is no flag.
//   INVALID_ARGUMENT (exit code 2)  a weight that is no number
absl::Status ApplyRewardFlags(const std::vector<std::string>& rewards,
                              trainer::RewardOptions& options);

}  // namespace tandem::cli
