#include "trainer/rewards/python/python_reward.h"

#include <algorithm>
#include <cstdio>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/status_macros.h"
#include "common/process/python_package.h"

namespace tandem::trainer {
namespace {

// Whole packages are imported before the first call: TRL with PyTorch took 20 s from a cold disk.
constexpr double kStartSeconds = 300;

LineProgram ProgramOf(const PythonRewardOptions& options) {
  return PythonWorkerProgram("reward worker", "tandem_rl.rewards.worker", options.interpreter,
                             options.memory_limit_mib);
}

// Starts `process` and waits until it has loaded the functions. `traceback`: of a failure.
absl::Status StartWorker(const std::vector<PythonFunction>& functions,
                         const PythonRewardOptions& options, std::string_view row,
                         LineProcess* process, std::string* traceback) {
  if (absl::Status started = process->Start(); !started.ok()) {
    return Unavailable(started.message(),
                       "; functions in Python need Python 3.10 or newer: install it, or name it in "
                       "reward.python.interpreter");
  }
  std::string hello = PythonHello(functions, options, row);
  const absl::StatusOr<std::string> line =
      process->NextLine(&hello, MonotonicSeconds() + kStartSeconds);
  if (!line.ok()) {
    const absl::Status& status = line.status();
    if (status.code() == absl::StatusCode::kCancelled) return status;
    return absl::Status(
        status.code(),
        absl::StrCat(status.message(), " before it had loaded the functions of reward.python",
                     PythonWorkerAdvice(*process)));
  }
  return ReadPythonReady(*line, traceback);
}

std::vector<PythonGroup> GroupsOf(std::span<const RewardQuestion> questions) {
  std::vector<PythonGroup> groups;
  for (size_t i = 0; i < questions.size(); ++i) {
    if (i == 0 || questions[i].group != questions[i - 1].group ||
        questions[i].scorer != questions[i - 1].scorer) {
      groups.emplace_back();
    }
    groups.back().indices.push_back(i);
  }
  return groups;
}

// What a function said, and what another try would not change.
bool IsFinal(const RewardAnswer& answer) {
  return answer.ok() || answer.status().code() == absl::StatusCode::kAborted ||
         answer.status().code() == absl::StatusCode::kCancelled ||
         answer.status().code() == absl::StatusCode::kFailedPrecondition;
}

// The process took too long or too much memory, and would do so again.
bool IsOverLimit(const RewardAnswer& answer) {
  return answer.status().code() == absl::StatusCode::kDeadlineExceeded ||
         answer.status().code() == absl::StatusCode::kResourceExhausted;
}

}  // namespace

absl::Status CheckPythonFunctions(const std::vector<PythonFunction>& functions,
                                  const PythonRewardOptions& options, std::string_view row) {
  std::string traceback;
  absl::Status status;
  // On a thread of its own, which blocks SIGPIPE: a process that ends at once must not end this one.
  std::thread([&] {
    BlockSigpipe();
    EndSign never;
    LineProcess process(ProgramOf(options), &never);
    status = StartWorker(functions, options, row, &process, &traceback);
  }).join();
  if (status.ok() || traceback.empty()) return status;
  return absl::Status(status.code(), absl::StrCat(status.message(), "\n", traceback));
}

PythonReward::PythonReward(std::vector<PythonFunction> functions,
                           const PythonRewardOptions& options, RewardTally* tally, EndSign* end)
    : functions_(std::move(functions)),
      options_(options),
      tally_(tally),
      process_(ProgramOf(options), end) {}

absl::Status PythonReward::Start() {
  std::string traceback;
  return StartWorker(functions_, options_, "", &process_, &traceback);
}

void PythonReward::Take(PythonReply reply, const PythonGroup& group, const std::string& function,
                        std::vector<RewardAnswer>* answers) {
  tally_->Update([&](RewardNumbers& numbers) {
    ++numbers.python_calls;
    numbers.python_seconds += reply.seconds;
    for (const auto& [name, sum_and_count] : reply.logged) {
      auto& [sum, count] = numbers.logged[name];
      sum += sum_and_count.first;
      count += sum_and_count.second;
    }
  });
  for (size_t i = 0; i < group.indices.size(); ++i) {
    const std::string& traceback = reply.tracebacks[i];
    RewardAnswer& answer = reply.answers[i];
    if (!answer.ok() && !traceback.empty() &&
        tally_->AddEventOnce(absl::StrCat(function, "\n", answer.status().message()),
                             "reward_raised", absl::StrCat(function, " raised:\n", traceback))) {
      log::Warning("a reward function raised; its traceback follows, once",
                   {{"function", function}});
      std::fprintf(stderr, "%s\n", traceback.c_str());
    }
    (*answers)[group.indices[i]] = std::move(answer);
  }
}

absl::Status PythonReward::Exchange(std::span<const RewardQuestion> questions,
                                    std::vector<PythonGroup>* open,
                                    std::vector<RewardAnswer>* answers) {
  std::string request = PythonRequest(questions, *open);
  while (!open->empty()) {
    const double deadline = MonotonicSeconds() + options_.timeout_seconds;
    const absl::StatusOr<std::string> line = process_.NextLine(&request, deadline);
    const std::string& function = functions_[questions[open->front().indices[0]].scorer].name;
    if (line.status().code() == absl::StatusCode::kDeadlineExceeded) {
      return DeadlineExceeded(function, " took more than ", options_.timeout_seconds,
                              " s (reward.python.timeout_seconds)");
    }
    if (line.status().code() == absl::StatusCode::kResourceExhausted) {
      return ResourceExhausted(function, " took more than ", options_.memory_limit_mib,
                               " MiB (reward.python.memory_limit_mib)");
    }
    if (!line.ok()) {
      return absl::Status(line.status().code(),
                          absl::StrCat("in ", function, ": ", line.status().message()));
    }
    TANDEM_ASSIGN_OR_RETURN(auto reply, ReadPythonReply(*line, questions, *open));
    const auto group = std::ranges::find(*open, reply.first, &PythonGroup::id);
    Take(std::move(reply.second), *group, function, answers);
    open->erase(group);
  }
  return absl::OkStatus();
}

absl::Status PythonReward::AskTogether(std::span<const RewardQuestion> questions,
                                       std::vector<PythonGroup> groups,
                                       std::vector<RewardAnswer>* answers) {
  absl::Status status = process_.is_running() ? absl::OkStatus() : Start();
  for (PythonGroup& group : groups) group.id = next_id_++;
  if (status.ok()) status = Exchange(questions, &groups, answers);
  if (status.ok()) return status;
  process_.Stop();
  for (const PythonGroup& group : groups) {
    for (const size_t index : group.indices) (*answers)[index] = status;
  }
  return status;
}

void PythonReward::AskOnceMore(std::span<const RewardQuestion> questions,
                               const std::vector<PythonGroup>& groups,
                               std::vector<RewardAnswer>* answers) {
  for (const PythonGroup& group : groups) {
    const auto is_open = [&](size_t index) { return !IsFinal((*answers)[index]); };
    if (std::ranges::none_of(group.indices, is_open)) continue;
    const bool was_alone = groups.size() == 1;
    if (was_alone && IsOverLimit((*answers)[group.indices[0]])) continue;
    (void)AskTogether(questions, {group}, answers);
  }
  for (const PythonGroup& group : groups) {
    if (group.indices.size() == 1) continue;
    for (const size_t index : group.indices) {
      if (IsFinal((*answers)[index])) continue;
      (void)AskTogether(questions, {PythonGroup{.indices = {index}}}, answers);
    }
  }
}

std::vector<RewardAnswer> PythonReward::Ask(std::span<const RewardQuestion> questions) {
  std::vector<RewardAnswer> answers(questions.size(), absl::UnknownError("not asked"));
  std::vector<PythonGroup> groups = GroupsOf(questions);
  while (!groups.empty()) {  // a request is about one function
    const size_t scorer = questions[groups[0].indices[0]].scorer;
    const auto rest = std::ranges::stable_partition(groups, [&](const PythonGroup& group) {
      return questions[group.indices[0]].scorer == scorer;
    });
    const std::vector<PythonGroup> together(groups.begin(), rest.begin());
    groups.erase(groups.begin(), rest.begin());
    if (!AskTogether(questions, together, &answers).ok()) {
      AskOnceMore(questions, together, &answers);
    }
  }
  return answers;
}

}  // namespace tandem::trainer
