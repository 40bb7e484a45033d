#include "cli/simulate/server_model.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <utility>

namespace tandem::simulate {
namespace {

constexpr double kStepTolerance = 1e-6;  // in steps, for rounding of sums of seconds
constexpr double kSecondsTolerance = 1e-9;

}  // namespace

double ServerSpeed::StepSeconds(double batch) const {
  if (knots.empty()) return 0;
  if (knots.size() == 1) return knots[0].step_seconds;
  size_t right = 1;
  while (right + 1 < knots.size() && knots[right].batch < batch) ++right;
  const Knot &a = knots[right - 1], &b = knots[right];
  const double slope = (b.step_seconds - a.step_seconds) / (b.batch - a.batch);
  return std::max(0.0, a.step_seconds + slope * (batch - a.batch));
}

int64_t GroupWork::kv_tokens() const {
  return std::accumulate(lengths.begin(), lengths.end(), prompt_tokens);
}

ServerModel::ServerModel(ServerSpeed speed) : speed_(std::move(speed)) {}

void ServerModel::Submit(GroupWork work) {
  waiting_.push_back(std::move(work));
  Admit();
}

void ServerModel::Admit() {
  while (!waiting_.empty()) {
    GroupWork& next = waiting_.front();
    const auto members = static_cast<int64_t>(next.lengths.size());
    const bool alone = groups_.empty();  // a group that never fits runs alone
    const bool fits =
        admitted_sequences_ + members <= speed_.max_sequences &&
        (speed_.kv_tokens == 0 || reserved_kv_ + next.kv_tokens() <= speed_.kv_tokens);
    if (!fits && !alone) return;
    next.version = version_;
    admitted_sequences_ += members;
    reserved_kv_ += next.kv_tokens();
    if (speed_.prefill_tokens_per_second > 0) {
      const double prompt =
          static_cast<double>(next.prompt_tokens) / speed_.prefill_tokens_per_second;
      debt_ += prompt;
      prefill_seconds_ += prompt;
    }
    joining_.push_back(next.group);
    groups_[next.group] = {std::move(next), 0};
    waiting_.pop_front();
  }
  if (debt_ <= 0) Join();
}

// The prompts are done, and their members decode from now on. The first token came with the prompt.
void ServerModel::Join() {
  for (const int64_t id : joining_) {
    InFlight& group = groups_[id];
    context_ += static_cast<double>(group.work.prompt_tokens);
    for (const int64_t length : group.work.lengths) {
      running_.push({steps_ + static_cast<double>(std::max<int64_t>(0, length - 1)), id, length});
      ++group.running;
      context_ += 1;
    }
  }
  joining_.clear();
}

// n steps of B completions with C tokens of context take n s(B) + kv (n C + B n^2 / 2) seconds.
double ServerModel::SecondsToEvent() const {
  if (debt_ > 0) return debt_;
  if (running_.empty()) return std::numeric_limits<double>::infinity();
  const auto batch = static_cast<double>(running_.size());
  const double n = std::max(0.0, running_.top().step - steps_);
  const double kv = speed_.seconds_per_context_token;
  return n * speed_.StepSeconds(batch) + kv * (n * context_ + batch * n * n / 2);
}

double ServerModel::StepsIn(double seconds) const {
  const auto batch = static_cast<double>(running_.size());
  const double linear = speed_.StepSeconds(batch) + speed_.seconds_per_context_token * context_;
  const double square = speed_.seconds_per_context_token * batch / 2;
  const double left = std::max(0.0, running_.top().step - steps_);
  if (linear <= 0 && square <= 0) return left;
  // The positive root of square n^2 + linear n = seconds, in the form without cancellation.
  const double n = 2 * seconds / (linear + std::sqrt(linear * linear + 4 * square * seconds));
  return std::min(n, left);
}

std::vector<GroupWork> ServerModel::Advance(double seconds) {
  if (!busy()) return {};
  busy_seconds_ += seconds;
  if (debt_ > 0) {
    debt_ -= seconds;
    if (debt_ > kSecondsTolerance) return {};
    debt_ = 0;
    Join();
  } else {
    const double n = StepsIn(seconds);
    const auto batch = static_cast<double>(running_.size());
    steps_ += n;
    context_ += n * batch;
    decoded_tokens_ += n * batch;
  }
  return TakeEnded();
}

std::vector<GroupWork> ServerModel::TakeEnded() {
  std::vector<GroupWork> ended;
  while (!running_.empty() && running_.top().step - steps_ < kStepTolerance) {
    const Ending ending = running_.top();
    running_.pop();
    const auto group = groups_.find(ending.group);
    --admitted_sequences_;
    reserved_kv_ -= ending.length;
    context_ -= static_cast<double>(std::max<int64_t>(1, ending.length));
    if (--group->second.running > 0) continue;
    context_ -= static_cast<double>(group->second.work.prompt_tokens);
    reserved_kv_ -= group->second.work.prompt_tokens;
    ended.push_back(std::move(group->second.work));
    groups_.erase(group);
  }
  if (running_.empty()) context_ = 0;  // removes rounding errors
  Admit();
  return ended;
}

std::vector<GroupWork> ServerModel::Lose() {
  std::vector<GroupWork> lost;
  for (auto& [id, group] : groups_) lost.push_back(std::move(group.work));
  for (GroupWork& work : waiting_) lost.push_back(std::move(work));
  groups_.clear();
  waiting_.clear();
  joining_.clear();
  running_ = {};
  admitted_sequences_ = reserved_kv_ = 0;
  context_ = debt_ = 0;
  return lost;
}

}  // namespace tandem::simulate
