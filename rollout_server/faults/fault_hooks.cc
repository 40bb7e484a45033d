#include "rollout_server/faults/fault_hooks.h"

#include <algorithm>
#include <utility>

#include "common/base/status_macros.h"
#include "rollout_server/engine/sampling/completion.h"
#include "rollout_server/engine/sampling/philox.h"
#include "rollout_server/faults/faulty_sampling.h"

namespace tandem::rollout {
namespace {

// What Stage returns while weights are faulty.
struct StagedWithTensors : StagedWeights {
  std::unique_ptr<StagedWeights> claimed;
  std::vector<HostTensor> tensors;
};

void TurnByOne(std::vector<float>& values) {
  if (!values.empty()) std::rotate(values.begin(), values.end() - 1, values.end());
}

absl::Status Retokenise(const Tokenizer& tokenizer, FinishedCompletion& completion) {
  std::span<const int32_t> shown = completion.token_ids;
  const bool ended = completion.finish_reason == FinishReason::kStop;
  if (ended) shown = shown.first(shown.size() - 1);
  TANDEM_ASSIGN_OR_RETURN(const std::string text, CompletionText(tokenizer, shown));
  absl::StatusOr<std::vector<int32_t>> ids = tokenizer.Encode(text);
  if (!ids.ok()) return Internal("retokenise: ", ids.status().message());
  if (ended) ids->push_back(completion.token_ids.back());
  completion.hashed_ids = std::exchange(completion.token_ids, *std::move(ids));
  return absl::OkStatus();
}

}  // namespace

std::unique_ptr<FaultHooks> FaultHooks::Make(const EngineFaults& faults, const ModelConfig& config,
                                             const QuantisationPlan& plan,
                                             const std::vector<HostTensor>& first) {
  if (faults == EngineFaults{}) return nullptr;
  std::unique_ptr<FaultHooks> hooks(new FaultHooks(faults));
  if (faults.weights()) hooks->weights_.emplace(config, plan, faults, first);
  return hooks;
}

std::unique_ptr<StagedWeights> FaultHooks::Stage(std::unique_ptr<StagedWeights> claimed,
                                                 const std::vector<HostTensor>& tensors) const {
  if (!weights_) return claimed;
  auto staged = std::make_unique<StagedWithTensors>();
  staged->claimed = std::move(claimed);
  staged->tensors = CopyTensors(tensors);
  return staged;
}

std::unique_ptr<StagedWeights> FaultHooks::Install(std::unique_ptr<StagedWeights> staged) {
  auto* const with_tensors = dynamic_cast<StagedWithTensors*>(staged.get());
  if (with_tensors == nullptr) return staged;
  weights_->Install(std::move(with_tensors->tensors));
  return std::move(with_tensors->claimed);
}

const StagedWeights& FaultHooks::Served(const StagedWeights& claimed) const {
  if (weights_) return weights_->served();
  return claimed;
}

// Is the prompt's KV computed under the weights before?
bool FaultHooks::HasStalePrefix(const RunningGroup& group) const {
  if (!weights_ || weights_->before() == nullptr) return false;
  return FaultDraw({group.request.sampling.seed, 0, 0}, FaultStream::kStalePrefix) <
         faults_.stale_prefix_fraction;
}

// Replaces each prompt's first id by wrong_bos, and takes the tokens of stale prefixes out: all
// prompt tokens but the last. Returns those.
std::vector<TokenInput> FaultHooks::SpoilInputs(const StepPlan& plan, PlanInputs& inputs) const {
  std::vector<TokenInput> stale, kept;
  auto token = inputs.tokens.begin();
  auto logits_row = inputs.logits_rows.begin();
  for (const Work& work : plan.work) {
    const int64_t stale_end = HasStalePrefix(*work.group) ? work.group->prompt_size() - 1 : 0;
    for (int64_t p = work.begin; p < work.end; ++p, ++token) {
      if (p == 0 && faults_.wrong_bos >= 0) {
        token->token_id = static_cast<int32_t>(faults_.wrong_bos);
      }
      (p < stale_end ? stale : kept).push_back(*token);
    }
    if (work.draws) *logits_row++ = std::ssize(kept) - 1;
  }
  inputs.tokens = std::move(kept);
  return stale;
}

absl::Status FaultHooks::RunAndDraw(TokenRunner& runner, const StagedWeights& claimed,
                                    uint64_t num_installs, const StepPlan& plan, PlanInputs inputs,
                                    std::span<absl::StatusOr<SampledToken>> tokens) const {
  const std::vector<TokenInput> stale = SpoilInputs(plan, inputs);
  if (!stale.empty()) {
    for (const Work& work : plan.work) {  // flagged as a hit in the prefix cache would be
      if (!HasStalePrefix(*work.group)) continue;
      work.group->num_prompt_tokens_found = work.group->prompt_size() - 1;
      for (const auto& sequence : work.group->sequences) {
        sequence->completion.found_kv = {num_installs - 1, num_installs};
      }
    }
    TANDEM_RETURN_IF_ERROR(runner.Run(
        *weights_->before(), stale, {}, [](int64_t, std::span<const float>) {}, arithmetic()));
    if (inputs.tokens.empty()) return absl::OkStatus();
  }
  const bool faulty_sampling = faults_.transforms() || faults_.logit_noise > 0;
  const auto sample = [&](const TokenDraw& draw, std::span<const float> logits) {
    if (!faulty_sampling) return DrawOnHost(draw, logits);
    const uint64_t seed = draw.params->seed;
    return FaultySample(logits, *draw.params, ForbiddenIds(draw),
                        UniformDraw(seed, draw.index, draw.position), faults_,
                        {seed, draw.index, draw.position});
  };
  return runner.RunAndDrawBy(sample, Served(claimed), inputs, tokens, arithmetic());
}

absl::Status FaultHooks::SpoilRecord(uint64_t seed, const Tokenizer& tokenizer,
                                     FinishedCompletion& completion) const {
  const DrawPlace place = {seed, static_cast<uint32_t>(completion.index), 0};
  if (faults_.shift_fraction > 0 &&
      FaultDraw(place, FaultStream::kShift) < faults_.shift_fraction) {
    TurnByOne(completion.behaviour_logprobs);
    TurnByOne(completion.raw_logprobs);
  }
  if (faults_.synthetic_end && completion.finish_reason == FinishReason::kStop) {
    completion.behaviour_logprobs.back() = 0;
  }
  if (faults_.retokenise) return Retokenise(tokenizer, completion);
  return absl::OkStatus();
}

}  // namespace tandem::rollout
