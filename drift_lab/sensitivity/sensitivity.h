// MeasureSensitivity: what quantising each matrix of the model costs on a batch of the user's own, and
// a mixed plan for a budget. Each matrix is quantised alone, and the batch is scored by the rollout
// engine with it and without it (one-at-a-time sensitivity, as in Dong et al. 2019, "HAWQ", with the
// mismatch itself as the measure).
//
// Memory: the model's tensors, and two versions of its packed weights.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "common/model/numerics.h"
#include "common/model/quantisation_plan.h"
#include "common/statistics/cluster_bootstrap.h"
#include "drift_lab/sensitivity/mixed_plan.h"
#include "rollout_server/engine/sampling/score_options.h"

namespace tandem::drift {

struct SensitivityOptions {
  std::string model;  // directory
  ComputeDType dtype = ComputeDType::kBf16;
  QuantisationOptions quantised;  // the whole: what is quantised one by one
  float temperature = 1;
  std::optional<double> budget;  // of k3, nats; none: no plan
  int64_t num_threads = 0;
};

// The mismatch between the engine with some matrices quantised (behaviour) and with none, over the
// sampled tokens of the batch.
struct QuantisationCost {
  offpolicy::Interval k3;        // E[w - 1 - log w] with log w = log p_wide - log p_quantised, nats
  offpolicy::Interval mean_abs;  // E|log w|, nats
};

struct PlaceSensitivity {
  std::string place;  // "3.down_proj", "head"
  ::tandem::WeightFormat format;
  QuantisationCost cost;
  int64_t saved_bytes = 0;
};

struct Sensitivity {
  int64_t num_layers = 0, num_tokens = 0, num_sequences = 0;
  std::string plan_text;                 // of the whole
  std::vector<PlaceSensitivity> places;  // layer by layer in the order of Site, then the head
  QuantisationCost whole;                // everything at once
  int64_t wide_bytes = 0, whole_bytes = 0;
  std::optional<MixedPlan> plan;  // indices into places
};

// Called before every measurement: how many are done, how many there are without those of a plan,
// and the next place.
using SensitivityProgress =
    absl::FunctionRef<void(int64_t done, int64_t total, const std::string& next)>;

// `batch`: T >= 2 ids each; the tokens after num_prompt_tokens count.
//   INVALID_ARGUMENT  nothing is quantised; an empty batch; MakeQuantisationPlan; CheckSequences
//   any error of Engine::Create and of its scores
absl::StatusOr<Sensitivity> MeasureSensitivity(const SensitivityOptions& options,
                                               const std::vector<rollout::ScoreSequence>& batch,
                                               SensitivityProgress progress);

}  // namespace tandem::drift
