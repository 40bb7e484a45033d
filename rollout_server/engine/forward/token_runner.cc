#include "rollout_server/engine/forward/token_runner.h"

#include <algorithm>

#include "common/base/status_macros.h"
#include "rollout_server/engine/sampling/philox.h"

namespace tandem::rollout {
namespace {

// How the next token of a sequence is sampled.
TokenDraw DrawOf(const Sequence& sequence, int64_t logits_row) {
  const SamplingParams& sampling = sequence.sampling();
  const bool may_stop = sequence.turn_size() >= sampling.min_new_tokens;
  return {.logits_row = logits_row,
          .params = &sampling,
          .forbidden = may_stop ? nullptr : &sequence.group->stop_ids,
          .index = static_cast<uint32_t>(sequence.completion.index),
          .position = static_cast<uint32_t>(sequence.completion.num_sampled())};
}

}  // namespace

std::span<const int32_t> ForbiddenIds(const TokenDraw& draw) {
  if (draw.forbidden == nullptr) return {};
  return draw.forbidden->rising();
}

absl::StatusOr<SampledToken> DrawOnHost(const TokenDraw& draw, std::span<const float> logits) {
  return SampleToken(logits, *draw.params, ForbiddenIds(draw),
                     UniformDraw(draw.params->seed, draw.index, draw.position));
}

absl::StatusOr<std::unique_ptr<StagedWeights>> TokenRunner::Adapt(
    std::shared_ptr<const StagedWeights>, std::shared_ptr<const AdapterWeights>) const {
  return Unimplemented("this engine applies no adapters beside its weights: merge them");
}

absl::StatusOr<std::unique_ptr<StagedWeights>> TokenRunner::PackAs(const std::vector<HostTensor>&,
                                                                   const QuantisationPlan&) const {
  return Unimplemented("this engine does not quantise");
}

absl::StatusOr<std::unique_ptr<ArrivingWeights>> TokenRunner::Arrive(
    std::unique_ptr<StagedWeights> spare,
    std::function<void(std::unique_ptr<StagedWeights>)> give_back) const {
  give_back(std::move(spare));
  return Unimplemented("weights arrive in host memory here: there is no device");
}

absl::Status TokenRunner::RunAndDrawBy(DrawFunction draw, const StagedWeights& weights,
                                       const PlanInputs& inputs,
                                       std::span<absl::StatusOr<SampledToken>> tokens,
                                       const ForwardArithmetic& arithmetic) {
  const std::span<const TokenDraw> draws = inputs.draws;
  return Run(
      weights, inputs.tokens, inputs.logits_rows,
      [&](int64_t row, std::span<const float> logits) {
        auto one = std::ranges::lower_bound(draws, row, {}, &TokenDraw::logits_row);
        for (; one != draws.end() && one->logits_row == row; ++one) {
          tokens[static_cast<size_t>(one - draws.begin())] = draw(*one, logits);
        }
      },
      arithmetic);
}

absl::Status TokenRunner::RunAndDraw(const StagedWeights& weights, const PlanInputs& inputs,
                                     std::span<absl::StatusOr<SampledToken>> tokens) {
  return RunAndDrawBy(DrawOnHost, weights, inputs, tokens);
}

absl::Status TokenRunner::RunAndScore(const StagedWeights& weights,
                                      std::span<const TokenInput> inputs,
                                      std::span<const int64_t> logits_rows,
                                      std::span<const int32_t> ids, const ScoreOptions& options,
                                      std::span<absl::StatusOr<ScoredToken>> tokens) {
  return Run(
      weights, inputs, logits_rows,
      [&](int64_t row, std::span<const float> logits) {
        const auto i = static_cast<size_t>(row);
        tokens[i] = ScoreToken(logits, options, ids[i]);
      },
      options.arithmetic);
}

PlanInputs BuildInputs(const StepPlan& plan) {
  PlanInputs in;
  for (const Work& work : plan.work) {
    const std::vector<BlockId>& blocks =
        work.sequence != nullptr ? work.sequence->kv.blocks : work.group->prompt.blocks;
    for (int64_t p = work.begin; p < work.end; ++p) {
      const int32_t id =
          work.sequence != nullptr ? work.sequence->TokenAt(p) : work.group->request.prompt[p];
      in.tokens.push_back(
          {id, static_cast<int32_t>(p), &blocks, work.group->request.adapter_weights.get()});
    }
    if (!work.draws) continue;
    const auto add = [&](Sequence* sequence) {
      in.sequences.push_back(sequence);
      in.draws.push_back(DrawOf(*sequence, std::ssize(in.logits_rows)));
    };
    if (work.sequence != nullptr) {
      add(work.sequence);
    } else {
      for (const auto& one : work.group->sequences) add(one.get());
    }
    in.logits_rows.push_back(std::ssize(in.tokens) - 1);
  }
  return in;
}

}  // namespace tandem::rollout
