#include "rollout_server/engine/sampling/sampler.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "absl/status/status.h"
#include "common/base/status_macros.h"
#include "common/model/token_distribution.h"
#include "common/tensor/instruction_set.h"

namespace tandem::rollout {
namespace {

constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();

// Workspace of a sampling thread: a row of V floats is too large to allocate for each token.
struct Scratch {
  std::vector<float> exps;
  std::vector<double> block_mass;
  std::vector<float> allowed;  // logits without the forbidden ones
  std::vector<int32_t> support;
};

TokenDistribution Distribute(std::span<const float> logits, float inverse_temperature,
                             Scratch& scratch) {
  scratch.exps.resize(logits.size());
  scratch.block_mass.resize(NumDistributionBlocks(static_cast<int64_t>(logits.size())));
  return DistributionOf(ActiveInstructionSet(), logits, inverse_temperature, scratch.exps.data(),
                        scratch.block_mass.data());
}

// First id whose cumulative mass exceeds `target`; the last id with mass when rounding runs past
// it.
int32_t InverseCdf(const std::vector<float>& exps, const std::vector<double>& block_mass,
                   double target) {
  const int64_t n = static_cast<int64_t>(exps.size());
  double cumulative = 0;
  int64_t last_with_mass = 0;
  for (size_t b = 0; b < block_mass.size(); ++b) {
    if (block_mass[b] <= 0) continue;
    const int64_t begin = static_cast<int64_t>(b) * kDistributionBlock;
    const int64_t end = std::min(n, begin + kDistributionBlock);
    const bool inside = cumulative + block_mass[b] > target;
    if (inside) {
      for (int64_t i = begin; i < end; ++i) {
        if (exps[i] <= 0) continue;
        cumulative += exps[i];
        last_with_mass = i;
        if (cumulative > target) return static_cast<int32_t>(i);
      }
      return static_cast<int32_t>(last_with_mass);
    }
    cumulative += block_mass[b];
    for (int64_t i = end - 1; i >= begin; --i) {
      if (exps[i] > 0) {
        last_with_mass = i;
        break;
      }
    }
  }
  return static_cast<int32_t>(last_with_mass);
}

// The same over the ids of the support.
int32_t InverseCdfOver(std::span<const float> logits, const TokenDistribution& d,
                       const std::vector<int32_t>& support, double target) {
  double cumulative = 0;
  for (const int32_t id : support) {
    cumulative += std::exp((logits[id] - d.largest) * static_cast<double>(d.inverse_temperature));
    if (cumulative > target) return id;
  }
  return support.back();
}

// Orders ids by falling logit, and equal ones by falling id: the reverse of an ascending sort by
// logit and id.
auto Likelier(std::span<const float> logits) {
  return [logits](int32_t a, int32_t b) {
    return logits[a] != logits[b] ? logits[a] > logits[b] : a > b;
  };
}

// Keeps the likeliest ids until they have `top_p` of the mass: an id stays when the likelier ids
// together have less. The row is sorted in parts of growing size, and only as far as needed, since
// the nucleus is usually small.
void KeepTopP(std::span<const float> logits, const std::vector<float>& exps, double top_p,
              std::vector<int32_t>& support) {
  double mass = 0;
  for (const int32_t id : support) mass += exps[id];
  double above = 0;
  size_t sorted = 0;
  for (size_t wanted = 64; sorted < support.size(); wanted *= 8) {
    const size_t end = std::min(support.size(), wanted);
    std::partial_sort(support.begin() + sorted, support.begin() + end, support.end(),
                      Likelier(logits));
    for (; sorted < end; ++sorted) {
      if (sorted > 0 && above >= top_p * mass) return support.resize(sorted);
      above += exps[support[sorted]];
    }
  }
}

// What shapes the tempered distribution, for a sample or a score.
struct Transforms {
  int32_t top_k = 0;
  float top_p = 1;
  float min_p = 0;

  bool filter() const { return top_k > 0 || top_p < 1 || min_p > 0; }
};

// The ids that top-k, top-p and min-p leave, in rising order.
void FindSupport(std::span<const float> logits, const TokenDistribution& d,
                 const Transforms& params, Scratch& scratch) {
  std::vector<int32_t>& support = scratch.support;
  support.clear();
  float threshold = kMinusInfinity;
  if (params.top_k > 0 && params.top_k < static_cast<int64_t>(logits.size())) {
    std::vector<float> copy(logits.begin(), logits.end());
    std::nth_element(copy.begin(), copy.begin() + (params.top_k - 1), copy.end(), std::greater<>());
    threshold = copy[params.top_k - 1];
  }
  for (size_t id = 0; id < logits.size(); ++id) {
    // Ties with the k-th logit stay, as in transformers.
    if (logits[id] >= threshold && logits[id] > kMinusInfinity) {
      support.push_back(static_cast<int32_t>(id));
    }
  }
  if (params.top_p < 1) KeepTopP(logits, scratch.exps, params.top_p, support);
  if (params.min_p > 0) {
    const double least = std::log(static_cast<double>(params.min_p));
    std::erase_if(support, [&](int32_t id) {
      return (logits[id] - d.largest) * static_cast<double>(d.inverse_temperature) < least;
    });
  }
  std::sort(support.begin(), support.end());
}

std::vector<TopLogprob> MostLikely(std::span<const float> logits, const TokenDistribution& d,
                                   std::vector<int32_t> ids, int32_t count) {
  const size_t wanted = std::min(ids.size(), static_cast<size_t>(count));
  std::partial_sort(ids.begin(), ids.begin() + wanted, ids.end(), [&](int32_t a, int32_t b) {
    return logits[a] != logits[b] ? logits[a] > logits[b] : a < b;
  });
  std::vector<TopLogprob> top;
  for (size_t i = 0; i < wanted; ++i) top.push_back({ids[i], d.LogProb(logits[ids[i]])});
  return top;
}

std::vector<int32_t> AllIds(size_t count) {
  std::vector<int32_t> ids(count);
  std::iota(ids.begin(), ids.end(), 0);
  return ids;
}

absl::Status BrokenRow(std::span<const float> logits) {
  const auto nans =
      std::count_if(logits.begin(), logits.end(), [](float x) { return std::isnan(x); });
  return DataLoss("the model gave ", nans, " NaN logits of ", logits.size(), ", largest ",
                  *std::max_element(logits.begin(), logits.end()));
}

// The distribution under the transforms. `whole` is the tempered distribution of the logits, and
// scratch.exps has its terms. With a filter on, scratch.support is set to the ids that are left.
TokenDistribution Transform(std::span<const float> logits, const TokenDistribution& whole,
                            const Transforms& transforms, Scratch& scratch) {
  if (!transforms.filter()) return whole;
  FindSupport(logits, whole, transforms, scratch);
  return DistributionOver(logits, scratch.support, whole.inverse_temperature, whole.largest);
}

float KeptMass(const TokenDistribution& kept, const TokenDistribution& whole) {
  return static_cast<float>(std::min(1.0, kept.mass / whole.mass));
}

// sum p^2 over the support.
double SquaredProbs(std::span<const float> logits, const TokenDistribution& d, bool filtered,
                    const Scratch& scratch) {
  if (!filtered) return SumOfSquares(ActiveInstructionSet(), scratch.exps) / (d.mass * d.mass);
  double sum = 0;
  for (const int32_t id : scratch.support) {
    const double e =
        std::exp((logits[id] - d.largest) * static_cast<double>(d.inverse_temperature));
    sum += e * e;
  }
  return sum / (d.mass * d.mass);
}

}  // namespace

absl::StatusOr<SampledToken> SampleToken(std::span<const float> logits,
                                         const SamplingParams& params,
                                         std::span<const int32_t> forbidden, double uniform) {
  thread_local Scratch scratch;
  const bool greedy = params.temperature == 0;
  std::span<const float> row = logits;
  if (!forbidden.empty()) {
    scratch.allowed.assign(logits.begin(), logits.end());
    for (int32_t id : forbidden) scratch.allowed[id] = kMinusInfinity;
    row = scratch.allowed;
  }
  const TokenDistribution whole =
      Distribute(row, greedy ? 1.0f : 1.0f / params.temperature, scratch);
  if (whole.broken()) {
    if (MassOf(ActiveInstructionSet(), logits, 1.0f).broken()) return BrokenRow(logits);
    return FailedPrecondition("no token is left to draw from");
  }

  SampledToken token;
  TokenDistribution drawn_from = whole;
  const Transforms transforms = {params.top_k, params.top_p, params.min_p};
  const bool filtered = !greedy && transforms.filter();
  if (greedy) {
    token.id = static_cast<int32_t>(std::max_element(row.begin(), row.end()) - row.begin());
    if (!forbidden.empty()) {
      drawn_from = DistributionOf(ActiveInstructionSet(), logits, 1.0f);
      if (drawn_from.broken()) return BrokenRow(logits);  // a forbidden id's logit
    }
  } else if (filtered) {
    drawn_from = Transform(row, whole, transforms, scratch);
    token.id = InverseCdfOver(row, drawn_from, scratch.support, uniform * drawn_from.mass);
    token.kept_mass = KeptMass(drawn_from, whole);
    if (params.return_support) token.support = scratch.support;
  } else {
    token.id = InverseCdf(scratch.exps, scratch.block_mass, uniform * whole.mass);
  }
  token.behaviour_logprob = drawn_from.LogProb(logits[token.id]);
  token.entropy = drawn_from.entropy();
  token.logprob_second_moment = drawn_from.second_moment();
  if (params.top_logprobs > 0) {
    token.top = MostLikely(greedy ? logits : row, drawn_from,
                           filtered ? scratch.support : AllIds(logits.size()), params.top_logprobs);
  }
  if (greedy || (!filtered && forbidden.empty() && params.temperature == 1.0f)) {
    token.raw_logprob = token.behaviour_logprob;
    return token;
  }
  const TokenDistribution raw = MassOf(ActiveInstructionSet(), logits, 1.0f);
  if (raw.broken()) return BrokenRow(logits);  // a forbidden id's logit
  token.raw_logprob = raw.LogProb(logits[token.id]);
  return token;
}

namespace {

// The gap to the largest logit, and the mass of the larger ids. One comparison for each id; the
// exponential is computed only for the few larger ones.
void FillAbove(std::span<const float> logits, const TokenDistribution& whole, int32_t id,
               ScoredToken& token) {
  const float own = logits[id];
  float largest = own;
  double mass = 0;
  for (const float logit : logits) {
    if (logit <= own) continue;
    largest = std::max(largest, logit);
    mass += std::exp(static_cast<double>(whole.LogProb(logit)));
  }
  token.gap = largest - own;
  token.mass_above = static_cast<float>(mass);
}

}  // namespace

absl::StatusOr<ScoredToken> ScoreToken(std::span<const float> logits, const ScoreOptions& options,
                                       int32_t id) {
  thread_local Scratch scratch;
  const TokenDistribution whole = Distribute(logits, 1.0f / options.temperature, scratch);
  if (whole.broken()) return BrokenRow(logits);
  const Transforms transforms = {options.top_k, options.top_p, options.min_p};
  const bool filtered = transforms.filter();
  const TokenDistribution drawn_from = Transform(logits, whole, transforms, scratch);

  ScoredToken token;
  const bool kept =
      !filtered || std::binary_search(scratch.support.begin(), scratch.support.end(), id);
  token.logprob = kept ? drawn_from.LogProb(logits[id]) : kMinusInfinity;
  token.raw_logprob =
      filtered || options.temperature != 1.0f ? LogSoftmaxAt(logits, 1.0f, id) : token.logprob;
  token.entropy = drawn_from.entropy();
  token.logprob_second_moment = drawn_from.second_moment();
  token.squared_probs = static_cast<float>(SquaredProbs(logits, drawn_from, filtered, scratch));
  if (filtered) token.kept_mass = KeptMass(drawn_from, whole);
  const LogitOrder order = OrderAt(ActiveInstructionSet(), logits, id);
  token.margin = order.margin;
  token.rank = order.rank;
  FillAbove(logits, whole, id, token);
  if (options.top_logprobs > 0) {
    token.top = MostLikely(logits, drawn_from, filtered ? scratch.support : AllIds(logits.size()),
                           options.top_logprobs);
  }
  return token;
}

float LogSoftmaxAt(std::span<const float> logits, float temperature, int32_t id) {
  return MassOf(ActiveInstructionSet(), logits, 1.0f / temperature).LogProb(logits[id]);
}

}  // namespace tandem::rollout
