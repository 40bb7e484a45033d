#include "cli/tools/reward_flags.h"

#include "absl/strings/numbers.h"
#include "cli/io/subcommand.h"
#include "common/base/status_macros.h"

namespace tandem::cli {

CLI::Option* AddRewardFlag(CLI::App* sub, std::vector<std::string>& rewards) {
  return sub
      ->add_option("--reward", rewards,
                   "NAME[=WEIGHT], as under trainer.reward.weights; may be given several times "
                   "(default: number_answer)")
      ->take_all()
      ->expected(1);
}

absl::Status ApplyRewardFlags(const std::vector<std::string>& rewards,
                              trainer::RewardOptions& options) {
  if (rewards.empty()) return absl::OkStatus();
  options.weights.clear();
  for (const std::string& text : rewards) {
    const size_t equals = text.find('=');
    double weight = 1;
    if (equals != std::string::npos && !absl::SimpleAtod(text.substr(equals + 1), &weight)) {
      return AsUsageError(InvalidArgument("--reward ", text, ": want NAME=WEIGHT"));
    }
    options.weights.emplace_back(text.substr(0, equals), weight);
  }
  return absl::OkStatus();
}

}  // namespace tandem::cli
