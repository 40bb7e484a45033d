#include "trainer/rewards/external/subprocess_reward.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/clock.h"
#include "common/base/json.h"
#include "common/base/status_macros.h"
#include "nlohmann/json.hpp"

namespace tandem::trainer {
namespace {

constexpr int kMostLineNesting = 16;
constexpr char kProgram[] = "reward program";

// The id of a line, if it is an object with one that is a whole number.
absl::StatusOr<int64_t> IdOf(const std::string& line, int64_t wanted) {
  using nlohmann::json;
  const json answer = NestsDeeperThan(line, kMostLineNesting)
                          ? json(json::value_t::discarded)
                          : json::parse(line, nullptr, /*allow_exceptions=*/false);
  const json id = answer.is_object() ? answer.value("id", json()) : json();
  if (id.is_number_integer()) return id.get<int64_t>();
  return InvalidArgument("reward program wrote '", line.substr(0, 120), "', want {\"id\":", wanted,
                         ",\"reward\":x}");
}

}  // namespace

void BindOptions(OptionBinder& binder, SubprocessRewardOptions& options) {
  binder.TextList("command", &options.command,
                  "program and arguments of component subprocess: JSON lines on stdin and stdout");
  binder.Number("timeout_seconds", &options.timeout_seconds, {.min = 0, .exclusive_min = true}, "s",
                "longest wait for one answer; then the program is restarted");
  binder.Integer("workers", &options.pool.workers, {.min = 1, .max = 1024}, "programs",
                 "that run beside each other, started when there is work for them");
  binder.Integer("batch_size", &options.pool.batch_size, {.min = 1, .max = 4096}, "completions",
                 "lines that a program is given before it has answered the first");
  binder.Flag("cached", &options.cached,
              "keep answers in reward.cache: for programs that give the same completion the same "
              "reward every time");
}

SubprocessReward::SubprocessReward(const SubprocessRewardOptions& options, EndSign* end)
    : options_(options), process_({.who = kProgram, .command = options.command}, end) {}

absl::Status SubprocessReward::TakeLine(const std::string& line,
                                        std::span<const RewardQuestion> questions, Open* open,
                                        std::vector<RewardAnswer>* answers) {
  const int64_t wanted = open->empty() ? next_id_ : open->begin()->first;
  TANDEM_ASSIGN_OR_RETURN(const int64_t id, IdOf(line, wanted));
  const auto question = open->find(id);
  if (question == open->end()) {
    return InvalidArgument("reward program wrote '", line.substr(0, 120),
                           "', want {\"id\":", wanted, ",\"reward\":x}");
  }
  const size_t index = question->second;
  (*answers)[index] = ParseAnswer(line, kProgram, questions[index].input().text);
  open->erase(question);
  return absl::OkStatus();
}

absl::Status SubprocessReward::Exchange(std::string lines,
                                        std::span<const RewardQuestion> questions, Open* open,
                                        std::vector<RewardAnswer>* answers) {
  while (!open->empty() || process_.HasLine()) {
    const double deadline = MonotonicSeconds() + options_.timeout_seconds;
    const absl::StatusOr<std::string> line = process_.NextLine(&lines, deadline);
    if (line.status().code() == absl::StatusCode::kDeadlineExceeded) {
      return DeadlineExceeded("reward program gave no answer within ", options_.timeout_seconds,
                              " s (reward.subprocess)");
    }
    TANDEM_RETURN_IF_ERROR(line.status());
    TANDEM_RETURN_IF_ERROR(TakeLine(*line, questions, open, answers));
  }
  return absl::OkStatus();
}

absl::Status SubprocessReward::AskTogether(std::span<const RewardQuestion> questions,
                                           const std::vector<size_t>& indices,
                                           std::vector<RewardAnswer>* answers) {
  if (!process_.is_running()) TANDEM_RETURN_IF_ERROR(process_.Start());
  Open open;
  std::string lines;
  for (const size_t index : indices) {
    const int64_t id = next_id_++;
    open[id] = index;
    absl::StrAppend(&lines, QuestionJson(questions[index].input(), id), "\n");
  }
  const absl::Status exchanged = Exchange(std::move(lines), questions, &open, answers);
  for (const auto& [id, index] : open) (*answers)[index] = exchanged;
  return exchanged;
}

std::vector<RewardAnswer> SubprocessReward::Ask(std::span<const RewardQuestion> questions) {
  std::vector<RewardAnswer> answers(questions.size(), absl::UnknownError("not asked"));
  std::vector<size_t> all(questions.size());
  std::iota(all.begin(), all.end(), size_t{0});
  absl::Status whole = AskTogether(questions, all, &answers);
  if (!process_.is_running()) answers.assign(questions.size(), whole);
  // After a failure the stream may be out of step with the requests: only a new process is safe.
  // Likewise where an answer cannot be: the program that gave it may be broken.
  const auto is_final = [](const RewardAnswer& answer) {
    return answer.ok() || answer.status().code() == absl::StatusCode::kAborted ||
           answer.status().code() == absl::StatusCode::kCancelled;
  };
  if (!whole.ok() || !std::ranges::all_of(answers, is_final)) process_.Stop();
  for (size_t i = 0; i < answers.size(); ++i) {
    if (is_final(answers[i])) continue;
    whole = AskTogether(questions, {i}, &answers);
    if (!whole.ok()) answers[i] = whole;
    if (!is_final(answers[i])) process_.Stop();
  }
  return answers;
}

}  // namespace tandem::trainer
