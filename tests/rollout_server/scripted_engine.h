// ScriptedEngine: an in-memory Engine whose results can be worked out by hand. Each step draws
// one token for every completion of the first `max_running` groups, by priority and arrival: id =
// 100 * completion + position; log-prob -0.5; version = the live one. A group of max_new_tokens N
// ends after N steps. A prompt that begins with 666 is refused by Add, 667 fails the engine, 668
// its own group at its second token. A score takes one slice for each sequence, holds a token of
// KV, and never ends when the first id is 999.
#pragma once

#include <algorithm>
#include <array>
#include <deque>
#include <limits>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "rollout_server/engine/engine.h"
#include "tests/rollout_server/memory_arrival.h"
#include "tests/rollout_server/scripted_model.h"
#include "tests/rollout_server/scripted_score.h"
#include "tests/rollout_server/step_gate.h"

namespace tandem::rollout::testing {

class ScriptedEngine : public EngineWithArrivals {
 public:
  explicit ScriptedEngine(StepGate* gate, size_t max_running = 8,
                          InFlight in_flight = InFlight::kKeep, StepGate* score_gate = nullptr)
      : gate_(gate), score_gate_(score_gate), max_running_(max_running), in_flight_(in_flight) {}

  absl::Status Validate(const GroupRequest& request) const override {
    const auto needed = std::ssize(request.prompt) + request.sampling.max_new_tokens;
    if (needed <= 1000) return absl::OkStatus();
    return absl::InvalidArgumentError(
        absl::StrCat("prompt + max_new_tokens is ", needed, ", over the context of 1000"));
  }
  absl::Status Add(GroupRequest request) override {
    if (request.prompt[0] == 666) return absl::InvalidArgumentError("scripted refusal");
    const auto place = std::ranges::find_if(groups_, [&](const Running& one) {
      return one.drawn == 0 && one.request.priority < request.priority;
    });
    groups_.insert(place, {std::move(request), {}, 0});
    return absl::OkStatus();
  }
  void PutLast(GroupKey key) override {
    const auto found = std::ranges::find_if(
        groups_, [&](const Running& one) { return one.request.key == key && one.drawn == 0; });
    if (found == groups_.end()) return;
    found->request.priority = std::numeric_limits<int32_t>::min();
    std::rotate(found, found + 1, groups_.end());
  }
  bool Abort(GroupKey key) override {
    return std::erase_if(groups_, [&](const Running& one) { return one.request.key == key; }) > 0;
  }
  std::vector<EngineEvent> StopEarly(GroupKey key) override {
    std::vector<EngineEvent> events;
    for (Running& one : groups_) {
      if (one.request.key != key || one.drawn == 0) continue;
      for (int32_t c = 0; c < one.request.num_completions; ++c) {
        events.push_back(CompletionFinished{key, Make(one, c)});
      }
      events.push_back(GroupFinished{key, 0, /*incomplete=*/true});
    }
    if (!events.empty()) Abort(key);
    return events;
  }
  absl::StatusOr<std::vector<EngineEvent>> Continue(GroupKey, const TurnAnswer&) override {
    return absl::NotFoundError("scripted completions have one turn");
  }
  bool HasWork() const override { return held_ ? NumRunning() > 0 : !groups_.empty(); }

  absl::StatusOr<std::vector<EngineEvent>> Step() override {
    gate_->Pass();
    std::vector<EngineEvent> events;
    for (size_t i = 0; i < groups_.size() && i < max_running_; ++i) {
      if (!held_ || groups_[i].drawn > 0) Advance(&groups_[i], &events);
    }
    std::erase_if(groups_, [](const Running& one) { return one.done; });
    if (groups_.size() > 0 && groups_[0].request.prompt[0] == 667) {
      return absl::InternalError("scripted failure");
    }
    return events;
  }

  absl::StatusOr<std::unique_ptr<StagedWeights>> Stage(
      std::vector<HostTensor> tensors) const override {
    auto staged = std::make_unique<TextWeights>();
    for (const HostTensor& one : tensors) staged->Add(one.bytes);
    return staged;
  }
  std::vector<GroupKey> Install(std::unique_ptr<StagedWeights>, WeightVersion version) override {
    live_ = version;
    std::vector<GroupKey> ended;
    for (const Running& one : groups_) {
      if (in_flight_ == InFlight::kAbort && one.drawn > 0) ended.push_back(one.request.key);
    }
    for (const GroupKey key : ended) Abort(key);
    return ended;
  }
  void HoldAdmissions(bool hold) override { held_ = hold; }
  InFlight in_flight() const override { return in_flight_; }

  absl::StatusOr<std::unique_ptr<ScoreRun>> StartScore(std::vector<ScoreSequence> sequences,
                                                       const ScoreOptions& options) override {
    return std::make_unique<ScriptedScore>(std::move(sequences), options, score_gate_, &live_,
                                           &num_scores_);
  }
  WeightVersion live_version() const override { return live_; }
  absl::StatusOr<MachineLimits> MeasureLimits() override { return MachineLimits(); }
  EngineStats Stats() const override {
    EngineStats stats;
    stats.kv_used_tokens = num_scores_;
    for (const Running& one : groups_) {
      stats.kv_used_tokens += static_cast<int64_t>(one.request.prompt.size()) + one.drawn;
    }
    stats.num_groups_running = NumRunning();
    stats.kv_capacity_tokens = 4096;
    stats.num_tokens_sampled = sampled_;
    stats.num_groups_failed = failed_;
    return stats;
  }

 private:
  struct Running {
    GroupRequest request;
    std::vector<VersionSpan> spans;
    int32_t drawn = 0;
    bool done = false;
  };

  int64_t NumRunning() const {
    return std::count_if(groups_.begin(), groups_.end(),
                         [](const Running& one) { return one.drawn > 0; });
  }

  void Advance(Running* one, std::vector<EngineEvent>* events) {
    const GroupKey key = one->request.key;
    if (one->drawn == 0) {
      events->push_back(GroupStarted{key});
      events->push_back(GroupDecoding{key});
    }
    if (one->spans.empty() || one->spans.back().version != live_) one->spans.push_back({live_, 0});
    ++one->spans.back().num_tokens;
    if (one->request.prompt[0] == 668 && one->drawn == 1) {
      ++failed_[static_cast<size_t>(GroupFailure::kNonFiniteLogits)];
      events->push_back(GroupFailed{key, GroupFailure::kNonFiniteLogits,
                                    absl::DataLossError("scripted: non_finite_logits")});
      one->done = true;
      return;
    }
    sampled_ += static_cast<uint64_t>(one->request.num_completions);
    if (++one->drawn < one->request.sampling.max_new_tokens) return;
    for (int32_t c = 0; c < one->request.num_completions; ++c) {
      events->push_back(CompletionFinished{key, Make(*one, c)});
    }
    events->push_back(GroupFinished{key, 0});
    one->done = true;
  }

  static FinishedCompletion Make(const Running& one, int32_t index) {
    FinishedCompletion completion;
    completion.index = index;
    for (int32_t t = 0; t < one.drawn; ++t) {
      completion.token_ids.push_back(100 * index + t);
      completion.behaviour_logprobs.push_back(-0.5f);
      completion.raw_logprobs.push_back(-0.5f);
      completion.entropies.push_back(1.0f);
      completion.logprob_second_moments.push_back(1.0f);
      completion.decode_batch_sizes.push_back(one.request.num_completions);
      completion.prefix_cached.push_back(false);
    }
    completion.version_spans = one.spans;
    completion.finish_reason = FinishReason::kLength;
    completion.text = absl::StrCat("completion ", index);
    return completion;
  }

  StepGate* const gate_;
  StepGate* const score_gate_;
  const size_t max_running_;
  const InFlight in_flight_;
  std::array<uint64_t, kNumGroupFailures> failed_ = {};
  bool held_ = false;
  std::deque<Running> groups_;
  WeightVersion live_;
  uint64_t sampled_ = 0;
  int64_t num_scores_ = 0;
};

}  // namespace tandem::rollout::testing
