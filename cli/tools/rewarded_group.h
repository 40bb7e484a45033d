// What `tandem eval` and `tandem sample` share: prompts of a file whose completions get the
// trainer's rewards, and which completions of a group are kept as data.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/model/model_config.h"
#include "rollout_server/engine/engine.h"
#include "trainer/data/row_parser.h"
#include "trainer/prompts/prompt_source.h"
#include "trainer/rewards/rewards.h"

namespace tandem::cli {

// Makes prompts that do not fit into the model's context together with a completion be dropped and
// counted.
//   INVALID_ARGUMENT (exit code 2)  a completion of max_new_tokens leaves no room for a prompt
absl::Status BoundPrompts(const ModelConfig& config, int64_t max_new_tokens,
                          trainer::DataOptions& data);

std::vector<trainer::Reward> RewardGroup(
    trainer::RewardFunction& reward, const experience::v1::Prompt& prompt,
    const std::vector<rollout::FinishedCompletion>& completions);

// Which completions of a group become rows.
enum class KeptCompletions {
  kBest,     // the one of the largest reward, the first of equals (RAFT, arXiv 2304.06767)
  kCorrect,  // every correct one, each text once (rejection sampling, arXiv 2501.12948)
  kPairs,    // the best against the worst where their rewards differ
};

// A completion that is blank, was cut by its length, or has no reward is never kept.
struct RewardedText {
  std::string text;
  double reward = 0;
  bool correct = false;
  bool usable = true;
};

// Indices of completions: of kBest and kCorrect, each alone; of kPairs the best and the worst, or
// none. Pure.
std::vector<size_t> Choose(std::span<const RewardedText> group, KeptCompletions kept);

// The row of a file for `tandem sft` ({"prompt" or "messages", "answer", "reward"}) or, of kPairs,
// for preferences and reward models ({"prompt", "chosen", "rejected", "score_.."}), with the prompt
// of `source_json` as `parser` reads it. `chosen` are indices of Choose, two of kPairs, else one.
//   INVALID_ARGUMENT  as trainer::RowParser::Parse
absl::StatusOr<std::string> RowOf(const trainer::RowParser& parser, const std::string& source_json,
                                  std::span<const RewardedText> group,
                                  std::span<const size_t> chosen);

}  // namespace tandem::cli
