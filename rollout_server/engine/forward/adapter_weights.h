// AdapterWeights: an adapter (LoRA) that is applied beside the weights it is of, packed for the
// engine's matrices: y = x W^T + (x A^T) (s B)^T, with A, B and both products in fp32. Immutable.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/lora/lora_shape.h"
#include "common/lora/peft_files.h"
#include "common/model/model_config.h"
#include "common/model/quantisation_plan.h"
#include "common/weights/host_tensor.h"
#include "rollout_server/engine/forward/model_weights.h"
#include "rollout_server/engine/forward/staged_weights.h"

namespace tandem::rollout {

// What an adapter adds to one matrix of the engine, which may be several modules: projections of the
// same input.
struct AdapterMatrix {
  // A tile of the matrix's outputs (PackedMatrix::kTileColumns) gets, for each module that it has
  // outputs of, inner values [first, first + rank) times b [rank, tile].
  struct Part {
    int64_t first = 0, rank = 0;
    int64_t b = 0;  // index into AdapterMatrix::b
  };

  int64_t depth = 0, rank = 0;  // inputs; ranks of all modules together. 0: no adapter here
  std::vector<float> a;         // [rank, depth]
  std::vector<float> b;         // with the scaling
  std::vector<std::vector<Part>> tiles;
};

struct AdapterWeights {
  uint64_t id = 0;  // another one for every adapter of an engine; 0: none
  std::vector<std::array<AdapterMatrix, kNumSites>> layers;
  AdapterMatrix head;
  int64_t largest_rank = 0;  // of all matrices

  const AdapterMatrix& at(int64_t layer, Site site) const {
    return layers[static_cast<size_t>(layer)][static_cast<size_t>(site)];
  }
};

// The factors of an adapter: LoraTensors of `modules`, F32, aligned.
struct AdapterFactors {
  std::vector<LoraModule> modules;
  std::vector<HostTensor> tensors;
  int64_t rank = 0;
  float scaling = 1;  // s
};
//   any error of CastNearest
absl::StatusOr<AdapterFactors> FactorsOf(const LoraAdapter& adapter);

// Packs an adapter of a model with this config.
//   INVALID_ARGUMENT  a module that is no matrix of the engine (named)
absl::StatusOr<std::shared_ptr<const AdapterWeights>> PackAdapter(const ModelConfig& config,
                                                                  const AdapterFactors& adapter,
                                                                  uint64_t id);

// ||s B A||^2: the sum of squares of what the adapter adds to the weight of module `m`.
double SquaredChange(const AdapterFactors& adapter, size_t m);

// What proves a weight with an adapter beside it: the digests of W, A and B together, from the first
// and the bytes of the others.
std::string UnmergedDigest(const std::string& weight, std::span<const std::byte> a,
                           std::span<const std::byte> b);

// Weights with an adapter beside them. Its served_digests are the base's.
struct AdaptedWeights : StagedWeights {
  std::shared_ptr<const ModelWeights> base;
  std::shared_ptr<const AdapterWeights> adapter;  // null: none yet
};

}  // namespace tandem::rollout
