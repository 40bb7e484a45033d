// TrainerScorer: the trainer's policy in this process, behind a header free of LibTorch. Used by
// `tandem score --engine trainer`.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/model/numerics.h"
#include "common/model/quantisation_plan.h"

namespace tandem::cli {

// Log-probs of a whole sequence, [T]: element t is the log-prob of token t given the tokens before
// it, under logits / temperature. Element 0 is 0. Use from one thread.
//   INVALID_ARGUMENT  T < 2, an id is outside the vocabulary, or T is over the context
using TrainerScorer = std::function<absl::StatusOr<std::vector<float>>(
    std::span<const int32_t> token_ids, double temperature)>;

// `quantised`: what the forward sees as a rollout server stores it. Errors are those of
// ReadModelConfig, ReadModelTensors, MakeQuantisationPlan and Policy::Create.
absl::StatusOr<TrainerScorer> LoadTrainerScorer(const std::string& model_directory, bool bf16,
                                                Numerics numerics,
                                                const QuantisationOptions& quantised = {});

}  // namespace tandem::cli
