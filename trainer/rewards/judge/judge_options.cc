#include "trainer/rewards/judge/judge_options.h"

#include <re2/re2.h>

#include <vector>

#include "absl/strings/match.h"
#include "common/base/exit_codes.h"
#include "common/base/status_macros.h"
#include "common/files/file_system.h"

namespace tandem::trainer {

void BindOptions(OptionBinder& binder, JudgeBudgetOptions& options) {
  binder.Integer(
      "max_calls", &options.max_calls, {.min = 0}, "requests",
      "to the judge, repeated ones included, of the run (with reward.cache.file across a "
      "resume); then completions fail; 0: no bound");
  binder.Integer(
      "max_tokens", &options.max_tokens, {.min = 0}, "tokens",
      "of the judge, prompts and replies, as the endpoint counts them (usage), likewise; 0: "
      "no bound");
}

void BindOptions(OptionBinder& binder, JudgeOptions& options) {
  binder.Text("url", &options.client.url,
              "component judge: an endpoint with OpenAI's API, up to and with /v1");
  binder.Text("model", &options.model, "name of the judge at the endpoint");
  BindOptions(binder, options.client, "api_key_file");
  binder.Text("rubric_file", &options.rubric_file,
              "text that the judge is given, with {prompt}, {completion} and {answer}; pairwise "
              "with {completion_a} and {completion_b}");
  binder.Choice("mode", &options.mode,
                {{"pointwise", JudgeMode::kPointwise}, {"pairwise", JudgeMode::kPairwise}},
                "a score of each completion alone, or the share of comparisons with others of its "
                "group that it wins, each asked in both orders");
  binder.Number("temperature", &options.temperature, {.min = 0}, "", "of the judge");
  binder.Integer("max_tokens", &options.max_tokens, {.min = 1, .max = 1 << 20}, "tokens",
                 "most of a reply");
  binder.Text("score_pattern", &options.score_pattern,
              "RE2 whose first group is the score, or A, B or tie (pairwise), of its last match; "
              "empty: JSON \"score\" or the last number; [[A]], [[B]], [[C]] or JSON \"winner\"");
  binder.Number("score_min", &options.score_min, {}, "", "score that becomes reward 0");
  binder.Number("score_max", &options.score_max, {}, "", "score that becomes reward 1");
  binder.Integer("samples", &options.samples, {.min = 1, .max = 64}, "replies",
                 "pointwise: to each completion; their mean counts");
  binder.Integer("opponents", &options.opponents, {.min = 0, .max = 1024}, "completions",
                 "pairwise: that each is compared with, drawn; 0: all others of the group");
  binder.Section("budget", "what a judge may cost", options.budget);
  BindOptions(binder, options.service);
}

absl::StatusOr<std::string> ReadRubric(const JudgeOptions& options) {
  TANDEM_RETURN_IF_ERROR(CheckHttpClientOptions(options.client, "reward.judge"));
  if (options.model.empty()) return InvalidArgument("reward.judge.model is empty");
  if (options.score_min >= options.score_max) {
    return InvalidArgument("reward.judge.score_min must be below reward.judge.score_max");
  }
  if (!options.score_pattern.empty()) {
    RE2::Options quiet;
    quiet.set_log_errors(false);
    const RE2 pattern(options.score_pattern, quiet);
    if (!pattern.ok()) return InvalidArgument("reward.judge.score_pattern: ", pattern.error());
    if (pattern.NumberOfCapturingGroups() < 1) {
      return InvalidArgument("reward.judge.score_pattern has no group, which is to be the score");
    }
  }
  if (options.rubric_file.empty()) return InvalidArgument("reward.judge.rubric_file is empty");
  const auto rubric = ReadFile(options.rubric_file);
  if (!rubric.ok()) {
    return WithExitCode(InvalidArgument("reward.judge.rubric_file: ", rubric.status().message()),
                        ExitCode::kBadModelOrData);
  }
  const std::vector<const char*> wanted =
      options.mode == JudgeMode::kPairwise
          ? std::vector<const char*>{"{completion_a}", "{completion_b}"}
          : std::vector<const char*>{"{completion}"};
  for (const char* const place : wanted) {
    if (absl::StrContains(*rubric, place)) continue;
    return InvalidArgument("reward.judge.rubric_file ", options.rubric_file, " has no ", place,
                           ", where the judge is to see the completion");
  }
  return *rubric;
}

}  // namespace tandem::trainer
