#include "rollout_server/engine/forward/token_runner.h"

#include <algorithm>

#include "rollout_server/engine/sampling/philox.h"

namespace tandem::rollout {

std::span<const int32_t> ForbiddenIds(const TokenDraw& draw) {
  if (draw.forbidden == nullptr) return {};
  return draw.forbidden->rising();
}

absl::StatusOr<SampledToken> DrawOnHost(const TokenDraw& draw, std::span<const float> logits) {
  return SampleToken(logits, *draw.params, ForbiddenIds(draw),
                     UniformDraw(draw.params->seed, draw.index, draw.position));
}

absl::StatusOr<std::unique_ptr<ArrivingWeights>> TokenRunner::Arrive(
    std::unique_ptr<StagedWeights> spare,
    std::function<void(std::unique_ptr<StagedWeights>)> give_back) const {
  give_back(std::move(spare));
  return absl::UnimplementedError("weights arrive in host memory here: there is no device");
}

absl::Status TokenRunner::RunAndDraw(const StagedWeights& weights,
                                     std::span<const TokenInput> inputs,
                                     std::span<const int64_t> logits_rows,
                                     std::span<const TokenDraw> draws,
                                     std::span<absl::StatusOr<SampledToken>> tokens) {
  return Run(weights, inputs, logits_rows, [&](int64_t row, std::span<const float> logits) {
    const auto before = [](const TokenDraw& draw, int64_t r) { return draw.logits_row < r; };
    auto draw = std::lower_bound(draws.begin(), draws.end(), row, before);
    for (; draw != draws.end() && draw->logits_row == row; ++draw) {
      tokens[static_cast<size_t>(draw - draws.begin())] = DrawOnHost(*draw, logits);
    }
  });
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

}  // namespace tandem::rollout
