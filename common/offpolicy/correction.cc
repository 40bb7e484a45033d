#include "common/offpolicy/correction.h"

#include <algorithm>
#include <cmath>
#include <map>

#include "common/base/status_macros.h"

// Two passes over the tokens. The first gathers sums per completion, because filters and the
// sequence and geometric weights depend on all of a completion's tokens. The second decides about
// each token in this order: not finite, rejected by a filter, dropped by a mask, kept with a
// bounded weight.
//
// Invariant: every trained token is counted once. num_nonfinite and num_masked are parts of
// num_rejected, and kept tokens plus num_rejected are the trained tokens. In modes without weights
// the weight is exactly 1, so that it does not change the loss's bits. Completions must be whole
// within a call; only batch_normalise can be completed later (DivideWeights).
//
// Sources: truncated importance sampling is Ionides (2008). docs/corrections.md names the
// publications of the masks and filters.
namespace tandem::offpolicy {
namespace {

double ClampedExp(double exponent) {
  return std::exp(std::clamp(exponent, -kMaxLogRatio, kMaxLogRatio));
}

// The sums over a completion that filters and completion-level weights use.
struct CompletionSums {
  double delta = 0, k3 = 0;
  double smallest_delta = 0, largest_k3 = 0;
  int64_t num_tokens = 0;
  bool weighed = false;  // already counted in num_weights
};

bool IsRefused(const CompletionSums& sums, const CorrectionOptions& options) {
  if (options.veto_threshold > 0 && sums.smallest_delta < std::log(options.veto_threshold)) {
    return true;
  }
  const auto n = static_cast<double>(sums.num_tokens);
  const double mean = sums.delta / n, noise = options.geometric_noise;
  if (options.geometric_min > 0 && mean < std::log(options.geometric_min)) return true;
  if (options.geometric_max > 0 && mean > std::log(options.geometric_max)) return true;
  if (options.k3_mean_max > 0 && sums.k3 / n > options.k3_mean_max) return true;
  if (options.k3_token_max > 0 && sums.largest_k3 > options.k3_token_max) return true;
  if (options.geometric_z <= 0) return false;
  return std::abs(mean + noise * noise / 2) > options.geometric_z * noise / std::sqrt(n);
}

struct Bounded {
  double weight = 1;
  bool moved = false, dropped = false;
};

// A token that a mask spares still has the ceiling; otherwise a single one could outweigh the rest
// of the batch.
Bounded ApplyBound(double raw, bool spared, const CorrectionOptions& options) {
  const Bound bound = BoundOf(options.kind);
  const bool above = raw > options.max_weight, below = raw < options.min_weight;
  if (bound == Bound::kMask && !spared && (above || below)) return {.dropped = true};
  if (above) return {options.max_weight, true};
  if (below && bound == Bound::kClip) return {options.min_weight, true};
  return {raw};
}

// The state of one call of ComputeCorrection.
struct Computation {
  const CorrectionInputs& in;
  const CorrectionOptions& options;
  const bool bypass = options.mode == CorrectionMode::kBypass;
  const bool filters = options.mode != CorrectionMode::kMeasureOnly && HasFilters(options);
  const bool weighs = HasWeights(options);
  const Level level = weighs ? LevelOf(options.kind) : Level::kToken;
  const bool reads_proximal = !bypass || filters;
  std::map<int64_t, CompletionSums> completions = {};

  bool IsFinite(size_t t) const {
    return std::isfinite(in.behaviour_logprobs[t]) &&
           (!reads_proximal || std::isfinite(in.proximal_logprobs[t]));
  }
  double Delta(size_t t) const {
    return reads_proximal ? in.proximal_logprobs[t] - in.behaviour_logprobs[t] : 0;
  }
  bool IsSpared(size_t t) const { return options.negative_only && in.advantages[t] >= 0; }

  void SumCompletions() {
    for (size_t t = 0; t < in.mask.size(); ++t) {
      if (!in.mask[t] || !IsFinite(t)) continue;
      CompletionSums& sums = completions[in.completion[t]];
      const double delta = Delta(t), k3 = ClampedExp(delta) - 1 - delta;
      sums.delta += delta;
      sums.k3 += k3;
      sums.smallest_delta = std::min(sums.smallest_delta, delta);
      sums.largest_k3 = std::max(sums.largest_k3, k3);
      ++sums.num_tokens;
    }
  }

  double RawWeight(size_t t, const CompletionSums& sums) const {
    switch (level) {
      case Level::kSequence:
        return ClampedExp(sums.delta);
      case Level::kGeometric:
        return ClampedExp(sums.delta / static_cast<double>(sums.num_tokens));
      case Level::kToken:
        break;
    }
    return bypass ? 1 : ClampedExp(Delta(t));
  }

  // Decides about token t, which is trained and has finite log-probs.
  void AddToken(size_t t, Correction& result) {
    CompletionSums& sums = completions.at(in.completion[t]);
    if (filters && !IsSpared(t) && IsRefused(sums, options)) return;
    const double raw = RawWeight(t, sums);
    const Bounded bounded = weighs ? ApplyBound(raw, IsSpared(t), options) : Bounded{};
    result.num_masked += bounded.dropped;
    if (bounded.dropped) return;
    result.kept[t] = 1;
    result.raw_weight[t] = raw;
    result.weight[t] = bounded.weight;
    result.centre_logprobs[t] = bypass ? in.behaviour_logprobs[t] : in.proximal_logprobs[t];
    result.num_capped += bounded.moved;
    if (level == Level::kToken || !sums.weighed) {
      sums.weighed = true;
      result.weight_sum += bounded.weight;
      ++result.num_weights;
    }
  }
};

absl::Status CheckLengths(const CorrectionInputs& in, const CorrectionOptions& options) {
  const auto check = [&](size_t size, const char* name) {
    if (size == in.mask.size()) return absl::OkStatus();
    return InvalidArgument("correction: ", name, " has ", size, " elements and mask ",
                           in.mask.size());
  };
  TANDEM_RETURN_IF_ERROR(check(in.proximal_logprobs.size(), "proximal_logprobs"));
  TANDEM_RETURN_IF_ERROR(check(in.behaviour_logprobs.size(), "behaviour_logprobs"));
  TANDEM_RETURN_IF_ERROR(check(in.completion.size(), "completion"));
  if (in.advantages.empty() && !options.negative_only) return absl::OkStatus();
  return check(in.advantages.size(), "advantages");
}

}  // namespace

absl::StatusOr<Correction> ComputeCorrection(const CorrectionInputs& inputs,
                                             const CorrectionOptions& options) {
  TANDEM_RETURN_IF_ERROR(CheckLengths(inputs, options));
  const size_t length = inputs.mask.size();
  Correction result{.weight = std::vector<double>(length),
                    .raw_weight = std::vector<double>(length, 1),
                    .centre_logprobs = std::vector<double>(length),
                    .kept = std::vector<uint8_t>(length)};
  Computation computation{inputs, options};
  computation.SumCompletions();
  for (size_t t = 0; t < length; ++t) {
    if (!inputs.mask[t]) continue;
    if (computation.IsFinite(t)) {
      computation.AddToken(t, result);
    } else {
      ++result.num_nonfinite;
    }
    result.num_rejected += !result.kept[t];
  }
  if (options.batch_normalise && computation.weighs && result.num_weights > 0) {
    DivideWeights(result.weight_sum / static_cast<double>(result.num_weights), result);
  }
  return result;
}

void DivideWeights(double divisor, Correction& correction) {
  if (divisor == 0) return;
  for (double& weight : correction.weight) weight /= divisor;
}

}  // namespace tandem::offpolicy
