#include "cli/tools/reward_flags.h"

#include <utility>

#include "absl/strings/numbers.h"
#include "cli/io/subcommand.h"
#include "common/base/status_macros.h"

namespace tandem::cli {

CLI::Option* AddRewardFlag(CLI::App* sub, std::vector<std::string>& rewards) {
  return sub
      ->add_option(
          "--reward", rewards,
          "NAME[=WEIGHT], as under trainer.reward.weights, or FILE.py:FUNCTION[=WEIGHT], as "
          "under trainer.reward.python; may be given several times "
          "(default: number_answer)")
      ->take_all()
      ->expected(1);
}

absl::Status ApplyRewardFlags(const std::vector<std::string>& rewards,
                              trainer::RewardOptions& options) {
  if (rewards.empty()) return absl::OkStatus();
  options.weights.clear();
  options.weights_are_given = true;
  for (const std::string& text : rewards) {
    size_t equals = text.rfind('=');
    double weight = 1;
    const bool is_function = text.find(':') != std::string::npos;
    if (equals != std::string::npos && !absl::SimpleAtod(text.substr(equals + 1), &weight)) {
      if (!is_function)
        return AsUsageError(InvalidArgument("--reward ", text, ": want NAME=WEIGHT"));
      equals = std::string::npos;  // of a function with arguments or another name
    }
    std::string name = text.substr(0, equals);
    if (is_function) {
      const auto function = trainer::ParsePythonFunction(name);
      if (!function.ok()) return AsUsageError(function.status());
      options.python.functions.push_back(std::exchange(name, function->name));
    }
    options.weights.emplace_back(std::move(name), weight);
  }
  return absl::OkStatus();
}

}  // namespace tandem::cli
