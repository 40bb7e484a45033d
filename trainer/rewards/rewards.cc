#include "trainer/rewards/rewards.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/mutex.h"
#include "common/base/status_macros.h"
#include "common/statistics/sample_statistics.h"

namespace tandem::trainer {
namespace {

constexpr double kDeviationEps = 1e-4;  // as advantage.eps by default

std::optional<double> BoundOf(const std::vector<std::pair<std::string, double>>& bounds,
                              const std::string& name) {
  for (const auto& [component, bound] : bounds) {
    if (component == name) return bound;
  }
  return std::nullopt;
}

// Adds weight * value to the sum of each step's end.
void AddSteps(double weight, const std::vector<StepReward>& steps,
              std::map<int64_t, double>* by_end) {
  for (const StepReward& step : steps) (*by_end)[step.end_byte] += weight * step.value;
}

// Adds weight * value to the sum of each token.
void AddTokens(double weight, const std::vector<double>& tokens, std::vector<double>* sums) {
  if (sums->size() < tokens.size()) sums->resize(tokens.size(), 0);
  for (size_t t = 0; t < tokens.size(); ++t) (*sums)[t] += weight * tokens[t];
}

// Beyond this a square is no float any more, and an advantage would be infinite or NaN.
constexpr double kLargestReward = 1e15;

// The largest size of a reward and its steps.
double LargestOf(const ExternalAnswer& answer) {
  double largest = std::abs(answer.value);
  for (const StepReward& step : answer.steps) largest = std::max(largest, std::abs(step.value));
  for (const double value : answer.token_rewards) largest = std::max(largest, std::abs(value));
  return largest;
}

// The numbers of the environment, and whether it failed.
void AddEpisode(const Episode& episode, Reward* reward) {
  for (const auto& [name, value] : episode.info) {
    reward->parts.emplace_back(absl::StrCat(std::string(kEnvironmentComponent), "/", name), value);
  }
  if (episode.failure.ok()) return;
  reward->mask_reason =
      absl::StrCat(std::string(kEnvironmentFailed), ": ", episode.failure.message());
}

// What the environment that played a completion gave it.
RewardAnswer EpisodeValue(const RewardInput& input) {
  if (input.episode == nullptr) {
    return FailedPrecondition("no environment played this completion (trainer.environment)");
  }
  const Episode& episode = *input.episode;
  ExternalAnswer answer;
  if (episode.is_per_turn) {
    answer.token_rewards.assign(static_cast<size_t>(input.num_tokens), 0);
  }
  const size_t num_turns = std::min(episode.turn_rewards.size(), episode.turn_ends.size());
  for (size_t i = 0; i < num_turns; ++i) {
    double& sum = episode.is_per_turn
                      ? answer.token_rewards[static_cast<size_t>(episode.turn_ends[i] - 1)]
                      : answer.value;
    sum += episode.turn_rewards[i];
  }
  return answer;
}

// What a synchronous call waits for.
struct Arrival {
  Mutex mu;
  CondVar changed;
  bool is_here ABSL_GUARDED_BY(mu) = false;
  ExternalAnswers answers ABSL_GUARDED_BY(mu);
};

}  // namespace

absl::StatusOr<std::unique_ptr<RewardFunction>> RewardFunction::Create(const RewardOptions& given,
                                                                       MakeModelAsker make_model) {
  RewardOptions options = given;
  WeighPythonFunctions(options);
  TANDEM_RETURN_IF_ERROR(CheckRewardOptions(options));
  std::unique_ptr<RewardFunction> function(new RewardFunction(options));
  TANDEM_ASSIGN_OR_RETURN(function->text_, TextComponents::Create(function->options_));
  TANDEM_ASSIGN_OR_RETURN(function->external_,
                          ExternalParts::Create(function->options_, std::move(make_model)));
  TANDEM_RETURN_IF_ERROR(CheckPassThreshold(options));
  function->judges_ = Judges(options);
  return function;
}

RewardFunction::~RewardFunction() = default;

absl::Status RewardFunction::Open(const std::string& run_id) {
  if (external_ == nullptr || std::exchange(is_open_, true)) return absl::OkStatus();
  return external_->Open(run_id);
}

absl::Status RewardFunction::Check(std::string_view row) const {
  return external_ == nullptr ? absl::OkStatus() : external_->Check(row);
}

void RewardFunction::Cancel() {
  if (external_ != nullptr) external_->Cancel();
}

void RewardFunction::Ask(std::shared_ptr<const HeldGroup> group, ExternalParts::Done done) {
  if (const absl::Status opened = Open(""); !opened.ok()) {
    ExternalAnswers failed;
    for (const std::string& name : names_) {
      if (FindComponent(options_, name)->kind != ComponentKind::kExternal) continue;
      failed[name].assign(group->inputs().size(), opened);
    }
    is_open_ = false;
    return done(std::move(failed));
  }
  external_->Ask(std::move(group), std::move(done));
}

std::vector<Reward> RewardFunction::Score(const std::vector<RewardInput>& inputs) {
  if (external_ == nullptr) return Combine(inputs, {});
  // Shared with the thread that brings the answers, which may still hold its lock when they are
  // here.
  const auto arrival = std::make_shared<Arrival>();
  Ask(std::make_shared<HeldGroup>(inputs), [arrival](ExternalAnswers answers) {
    MutexLock lock(&arrival->mu);
    arrival->answers = std::move(answers);
    arrival->is_here = true;
    arrival->changed.NotifyAll();
  });
  MutexLock lock(&arrival->mu);
  while (!arrival->is_here) arrival->changed.Wait(&arrival->mu);
  return Combine(inputs, arrival->answers);
}

void RewardFunction::Cap(const std::string& name, std::vector<RewardAnswer>* values) const {
  const std::optional<double> low = BoundOf(options_.cap_min, name);
  const std::optional<double> high = BoundOf(options_.cap_max, name);
  const auto cap = [&](double& value) {
    if (low.has_value()) value = std::max(value, *low);
    if (high.has_value()) value = std::min(value, *high);
  };
  for (RewardAnswer& value : *values) {
    if (!value.ok() || value->is_left_out) continue;
    cap(value->value);
    for (StepReward& step : value->steps) cap(step.value);
    for (double& of_token : value->token_rewards) cap(of_token);
  }
}

std::vector<RewardAnswer> RewardFunction::Values(const std::string& name,
                                                 const std::vector<RewardInput>& inputs,
                                                 const ExternalAnswers& answers) const {
  std::vector<RewardAnswer> values;
  values.reserve(inputs.size());
  const ComponentKind kind = FindComponent(options_, name)->kind;
  if (kind == ComponentKind::kExternal) {
    values = answers.at(name);
  } else if (kind == ComponentKind::kEpisode) {
    for (const RewardInput& input : inputs) values.push_back(EpisodeValue(input));
  } else if (kind == ComponentKind::kGroup) {
    for (const double value : text_->GroupValues(name, inputs)) {
      values.emplace_back(ExternalAnswer{.value = value});
    }
  } else {
    for (const RewardInput& input : inputs) {
      const absl::StatusOr<double> value = text_->Value(name, input);
      if (value.ok())
        values.emplace_back(ExternalAnswer{.value = *value});
      else
        values.emplace_back(value.status());
    }
  }
  Cap(name, &values);
  for (RewardAnswer& value : values) {
    if (!value.ok() || LargestOf(*value) <= kLargestReward) continue;
    value = InvalidArgument("a reward of ", LargestOf(*value), " is beyond ", kLargestReward,
                            "; reward.cap_min and cap_max limit it");
  }
  return values;
}

void RewardFunction::AddGold(size_t index, const std::vector<std::vector<RewardAnswer>>& values,
                             Reward* reward) const {
  double sum = 0;
  bool is_whole = !options_.gold.empty();
  for (size_t c = options_.weights.size(); c < names_.size(); ++c) {
    const RewardAnswer& part = values[c][index];
    is_whole &= part.ok();
    // Neither is a reason to mask: nothing is trained on it.
    if (!part.ok() || part->is_left_out) continue;
    double value = part->value;
    for (const StepReward& step : part->steps) value += step.value;
    for (const double of_token : part->token_rewards) value += of_token;
    reward->parts.emplace_back(names_[c], value);
    sum += value;
  }
  if (is_whole) reward->gold = sum;
}

bool RewardFunction::IsCorrect(const Reward& reward) const {
  double sum = 0;
  for (const auto& [name, weight] : judges_) {
    for (const auto& [part, value] : reward.parts) {
      if (part == name) sum += weight * value;
    }
  }
  return !judges_.empty() && Reaches(sum, options_.pass_threshold);
}

Reward RewardFunction::Sum(const RewardInput& input, size_t index,
                           const std::vector<std::vector<RewardAnswer>>& values,
                           const std::vector<std::vector<double>>& normalised) const {
  Reward reward;
  std::map<int64_t, double> steps;
  if (input.truncated && options_.truncated == TruncatedPolicy::kMask) {
    reward.mask_reason = "truncated";
  }
  bool applies = false;
  for (size_t c = 0; c < options_.weights.size(); ++c) {
    const auto& [name, weight] = options_.weights[c];
    const RewardAnswer& part = values[c][index];
    if (!part.ok()) {
      if (weight == 0) continue;  // measured only: nothing is trained on it
      reward.mask_reason = absl::StrCat("reward_failed: ", name, ": ", part.status().message());
      continue;
    }
    if (part->is_left_out) continue;
    applies = true;
    reward.parts.emplace_back(name, part->value);
    for (const auto& [inner, value] : part->parts) {
      reward.parts.emplace_back(absl::StrCat(name, "/", inner), value);
    }
    reward.notes.insert(reward.notes.end(), part->notes.begin(), part->notes.end());
    AddTokens(weight, part->token_rewards, &reward.token_rewards);
    reward.value += weight * (normalised[c].empty() ? part->value : normalised[c][index]);
    AddSteps(weight, part->steps, &steps);
  }
  if (!applies && reward.mask_reason.empty()) reward.mask_reason = kNoRewardApplies;
  if (input.episode != nullptr) AddEpisode(*input.episode, &reward);
  for (const auto& [end, value] : steps) reward.steps.push_back({.end_byte = end, .value = value});
  AddGold(index, values, &reward);
  reward.correct = IsCorrect(reward) && !IsRewardFailure(reward.mask_reason);
  if (input.truncated && options_.truncated == TruncatedPolicy::kZero) {
    reward.value = 0;
    reward.steps.clear();
    reward.token_rewards.clear();
  }
  if (input.truncated && options_.truncated == TruncatedPolicy::kPenalise) {
    reward.value -= options_.truncated_penalty;
  }
  return reward;
}

std::vector<Reward> RewardFunction::Combine(const std::vector<RewardInput>& inputs,
                                            const ExternalAnswers& answers) const {
  std::vector<std::vector<RewardAnswer>> values;  // [component][completion]
  std::vector<std::vector<double>> normalised;    // the same; empty: the component is not
  for (const std::string& name : names_) {
    values.push_back(Values(name, inputs, answers));
    const bool is_normalised =
        std::ranges::find(options_.normalise, name) != options_.normalise.end();
    normalised.push_back(is_normalised ? NormaliseInGroup(values.back()) : std::vector<double>());
  }
  std::vector<Reward> rewards;
  rewards.reserve(inputs.size());
  for (size_t i = 0; i < inputs.size(); ++i) {
    rewards.push_back(Sum(inputs[i], i, values, normalised));
  }
  return rewards;
}

std::vector<double> NormaliseInGroup(const std::vector<RewardAnswer>& values) {
  std::vector<double> known;
  for (const RewardAnswer& value : values) {
    if (value.ok() && !value->is_left_out) known.push_back(value->value);
  }
  std::vector<double> normalised(values.size(), 0);
  if (known.size() < 2) return normalised;
  const double mean = offpolicy::Mean(known);
  const double deviation =
      std::sqrt(offpolicy::SquaredDeviations(known) / static_cast<double>(known.size() - 1));
  const bool are_equal = std::ranges::count(known, known[0]) == std::ssize(known);
  for (size_t i = 0; i < values.size() && !are_equal; ++i) {
    if (!values[i].ok() || values[i]->is_left_out) continue;
    normalised[i] = (values[i]->value - mean) / (deviation + kDeviationEps);
  }
  return normalised;
}

}  // namespace tandem::trainer
