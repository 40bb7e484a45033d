#include "drift_lab/ablation/token_parts.h"

#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <utility>

namespace tandem::drift {
namespace {

std::vector<double> Difference(const std::vector<float>& from, const std::vector<float>& to) {
  std::vector<double> difference(from.size());
  for (size_t t = 0; t < from.size(); ++t) {
    difference[t] = static_cast<double>(to[t]) - static_cast<double>(from[t]);
  }
  return difference;
}

// The predicted record, from the replay of the claims to that with all causes. Where a cause makes
// no prediction for a token (NaN), the record stands in; where it gives the token probability 0,
// the prediction of the step before.
std::vector<std::vector<float>> RecordSteps(const Ablation& ablation) {
  std::vector<std::vector<float>> steps = ablation.diagnosis.predictions;
  for (size_t i = 1; i < steps.size(); ++i) {
    for (size_t t = 0; t < steps[i].size(); ++t) {
      float& value = steps[i][t];
      if (!std::isfinite(value)) value = std::isnan(value) ? ablation.record[t] : steps[i - 1][t];
    }
  }
  return steps;
}

// What factor `i` contributes between all factors as in the engine and all as in the trainer.
std::vector<double> FactorPart(const Ablation& ablation, int i) {
  const std::vector<double> weights = ShapleyWeights(static_cast<int>(ablation.factors.size()), i);
  std::vector<double> part(ablation.record.size());
  for (size_t cell = 0; cell < weights.size(); ++cell) {
    for (size_t t = 0; t < part.size(); ++t) part[t] -= weights[cell] * ablation.cells[cell][t];
  }
  return part;
}

double Factorial(int n) { return n < 2 ? 1 : n * Factorial(n - 1); }

}  // namespace

TokenParts SplitTokens(const Ablation& ablation) {
  TokenParts split;
  const auto add = [&](Part part, std::vector<double> values) {
    split.parts.push_back(part);
    split.values.push_back(std::move(values));
  };
  const std::vector<std::vector<float>> predictions = RecordSteps(ablation);
  add(Part::kRecord, Difference(ablation.record, predictions.back()));
  for (size_t i = predictions.size() - 1; i > 0; --i) {
    add(ablation.diagnosis.causes[i - 1].part, Difference(predictions[i], predictions[i - 1]));
  }
  add(Part::kPath, Difference(ablation.replay.logprobs, ablation.prefill));
  if (ablation.carries_kv)
    add(Part::kCarriedKv, Difference(ablation.prefill, ablation.own_version));
  if (ablation.unmerged) add(Part::kUnmerged, Difference(ablation.own_version, ablation.merged));
  if (ablation.quantises) {
    add(Part::kQuantisation, Difference(ablation.merged, ablation.unquantised));
  }
  if (!ablation.factors.empty()) {
    add(Part::kEmulation, Difference(ablation.unquantised, ablation.cells.back()));
    split.first_factor = split.parts.size();
    split.num_factors = ablation.factors.size();
    for (const std::vector<float>& cell : ablation.cells) {
      split.cells.push_back(Difference(cell, ablation.cells.front()));
    }
    for (size_t i = 0; i < ablation.factors.size(); ++i) {
      add(ablation.factors[i], FactorPart(ablation, static_cast<int>(i)));
    }
  }
  add(Part::kKernels, Difference(ablation.cells.front(), ablation.trainer_alone));
  add(Part::kLayout, Difference(ablation.trainer_alone, ablation.trainer_packed));
  add(Part::kStaleness, Difference(ablation.trainer_packed, ablation.trainer_now));
  if (ablation.proximal_recorded) {
    add(Part::kTrainerRecord, Difference(ablation.trainer_now, ablation.proximal));
  }
  return split;
}

std::vector<double> ShapleyWeights(int k, int i) {
  std::vector<double> weights(size_t{1} << k);
  for (uint32_t cell = 0; cell < weights.size(); ++cell) {
    if (cell >> i & 1) continue;
    const int size = std::popcount(cell);
    const double weight = Factorial(size) * Factorial(k - 1 - size) / Factorial(k);
    weights[cell | 1u << i] += weight;
    weights[cell] -= weight;
  }
  return weights;
}

std::vector<double> AloneWeights(int k, int i) {
  std::vector<double> weights(size_t{1} << k);
  weights[size_t{1} << i] += 1;
  weights[0] -= 1;
  return weights;
}

std::vector<double> LastWeights(int k, int i) {
  std::vector<double> weights(size_t{1} << k);
  const size_t all = weights.size() - 1;
  weights[all] += 1;
  weights[all & ~(size_t{1} << i)] -= 1;
  return weights;
}

}  // namespace tandem::drift
