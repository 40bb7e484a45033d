#include "drift_lab/recompute/engine_forward.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "common/base/status_macros.h"
#include "common/base/weight_version.h"

namespace tandem::drift {
namespace {

using offpolicy::Capture;

constexpr float kNotAsked = std::numeric_limits<float>::quiet_NaN();
constexpr size_t kCompletionsTogether = 32;
constexpr int64_t kBlockSlack = 32;  // tokens that a sequence's last KV block may leave unused

constexpr std::vector<float> rollout::SequenceScore::*kColumns[] = {
    &rollout::SequenceScore::logprobs,      &rollout::SequenceScore::entropies,
    &rollout::SequenceScore::squared_probs, &rollout::SequenceScore::logprob_second_moments,
    &rollout::SequenceScore::kept_mass,     &rollout::SequenceScore::gaps,
    &rollout::SequenceScore::mass_above};

}  // namespace

EngineScores::EngineScores(int64_t num_tokens) {
  for (const auto column : kColumns)
    (this->*column).assign(static_cast<size_t>(num_tokens), kNotAsked);
  ranks.assign(static_cast<size_t>(num_tokens), -1);
}

void EngineScores::Take(const rollout::SequenceScore& other, int64_t begin, int64_t end,
                        int64_t to) {
  for (const auto column : kColumns) {
    std::copy((other.*column).begin() + begin, (other.*column).begin() + end,
              (this->*column).begin() + to);
  }
  std::copy(other.ranks.begin() + begin, other.ranks.begin() + end, ranks.begin() + to);
}

void EngineScores::LeaveOutGiven(const Capture& capture, int64_t completion) {
  for (int64_t t = capture.begin_of(completion); t < capture.begin_of(completion + 1); ++t) {
    if (capture.is_drawn(t)) continue;
    const auto place = static_cast<size_t>(t);
    for (const auto column : kColumns) (this->*column)[place] = kNotAsked;
    ranks[place] = -1;
  }
}

absl::StatusOr<std::unique_ptr<EngineForward>> EngineForward::Create(
    const std::string& model_directory, const EngineForwardOptions& options) {
  rollout::EngineOptions engine_options;
  engine_options.dtype = options.dtype;
  engine_options.num_threads = options.num_threads;
  engine_options.quantised = options.quantised;
  if (options.unmerged) engine_options.lora = rollout::LoraPlace::kUnmerged;
  engine_options.kv_capacity_tokens =
      static_cast<int64_t>(kCompletionsTogether) * (options.longest + kBlockSlack);
  TANDEM_ASSIGN_OR_RETURN(auto engine, rollout::Engine::Create(model_directory, engine_options));
  engine->DropInitialTensors();
  return std::unique_ptr<EngineForward>(new EngineForward(std::move(engine), options.quantised.kv));
}

absl::StatusOr<std::unique_ptr<rollout::StagedWeights>> EngineForward::StageAs(
    const std::vector<HostTensor>& tensors, QuantisationPlan plan) const {
  plan.kv = kv_;
  return engine_->StageAs(tensors, plan);
}

absl::Status EngineForward::Install(std::vector<HostTensor> tensors) {
  TANDEM_ASSIGN_OR_RETURN(auto staged, engine_->Stage(std::move(tensors)));
  engine_->Install(std::move(staged), WeightVersion{++version_});
  return absl::OkStatus();
}

absl::StatusOr<EngineScores> EngineForward::Score(const Capture& capture,
                                                  const std::vector<bool>& wanted,
                                                  const rollout::ScoreOptions& options,
                                                  absl::FunctionRef<void(int64_t)> progress,
                                                  const EngineInputs& inputs) {
  EngineScores scores(capture.num_tokens());
  std::vector<int64_t> pending;
  int64_t done = 0;
  const auto run = [&]() -> absl::Status {
    std::vector<rollout::ScoreSequence> sequences;
    for (const int64_t s : pending) {
      const auto prompt = capture.prompt_of(s), ids = capture.ids(s);
      rollout::ScoreSequence& sequence = sequences.emplace_back();
      sequence.ids.assign(prompt.begin(), prompt.end());
      sequence.ids.insert(sequence.ids.end(), ids.begin(), ids.end());
      sequence.num_prompt_tokens = static_cast<int64_t>(prompt.size());
      if (inputs.first_id >= 0) sequence.ids.front() = inputs.first_id;
      if (inputs.segments) sequence.segments = inputs.segments(s);
    }
    TANDEM_ASSIGN_OR_RETURN(const auto results, engine_->Score(sequences, options));
    for (size_t i = 0; i < pending.size(); ++i) {
      scores.Take(results[i], sequences[i].num_prompt_tokens, std::ssize(sequences[i].ids),
                  capture.begin_of(pending[i]));
      scores.LeaveOutGiven(capture, pending[i]);
      done += std::ssize(capture.ids(pending[i]));
    }
    pending.clear();
    progress(done);
    return absl::OkStatus();
  };
  for (int64_t s = 0; s < capture.num_completions(); ++s) {
    if (!wanted.empty() && !wanted[static_cast<size_t>(s)]) continue;
    pending.push_back(s);
    if (pending.size() == kCompletionsTogether) TANDEM_RETURN_IF_ERROR(run());
  }
  if (!pending.empty()) TANDEM_RETURN_IF_ERROR(run());
  return scores;
}

rollout::ScoreOptions ClaimedTransforms(const offpolicy::CapturedSampling& sampling) {
  rollout::ScoreOptions options;
  options.temperature = sampling.temperature;
  options.top_k = sampling.top_k;
  options.top_p = sampling.top_p;
  options.min_p = sampling.min_p;
  return options;
}

int64_t LongestSequence(const Capture& capture) {
  int64_t longest = 0;
  for (int64_t s = 0; s < capture.num_completions(); ++s) {
    longest =
        std::max<int64_t>(longest, std::ssize(capture.prompt_of(s)) + std::ssize(capture.ids(s)));
  }
  return longest;
}

}  // namespace tandem::drift
