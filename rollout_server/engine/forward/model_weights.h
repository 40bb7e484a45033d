// ModelWeights: one version of the model, packed for the CPU kernels and quantised as a QuantisationPlan
// says. Immutable while it serves. Made from tensors in ModelTensors order.
#pragma once

#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "common/matrix/packed_matrix.h"
#include "common/model/model_config.h"
#include "common/model/quantisation_plan.h"
#include "common/weights/host_tensor.h"
#include "rollout_server/engine/forward/staged_weights.h"

namespace tandem::rollout {

struct LinearWeights {
  PackedMatrix matrix;
  std::vector<float> bias;  // [columns], or empty
};

struct LayerWeights {
  // Norms with their offset added (ModelConfig::norm_offset), or no elements: [E] ...
  std::vector<float> attention_norm, attention_out_norm, mlp_norm, mlp_out_norm;
  std::vector<float> q_norm, k_norm;  // ... [D], or [H D] and [Hkv D]
  LinearWeights qkv;                  // E -> (H + 2 Hkv) D
  LinearWeights o;                    // H D -> E
  LinearWeights gate_up;  // E -> tiles of 16 gates and their 16 ups; features from I on are zero
  LinearWeights down;     // I -> E
};

struct ModelWeights : StagedWeights {
  PackedMatrix head;       // E -> V
  PackedMatrix embedding;  // V columns of depth E; empty when the head is the embedding
  std::vector<LayerWeights> layers;
  std::vector<float> final_norm;                 // [E]
  Activations activations = Activations::kAuto;  // of the quantised matrices

  const PackedMatrix& embeddings() const { return embedding.columns() > 0 ? embedding : head; }
  // Are the inputs of this matrix quantised?
  bool int8_rows(const PackedMatrix& matrix) const {
    return Int8Rows(activations, matrix.format());
  }
  int64_t linear_bytes() const;    // of all linear layers: what a step reads
  int64_t linear_weights() const;  // their number, without the head's
};

// The memory that the matrices of a version take.
int64_t PackedModelBytes(const ModelConfig& config, DType dtype, const QuantisationPlan& plan);

//   INVALID_ARGUMENT  a tensor has another name, shape or dtype than ModelTensors says, or than
//                     StoredTensors says where one has stored rows
absl::Status CheckModelTensors(const ModelConfig& config, const std::vector<HostTensor>& tensors,
                               DType dtype, const QuantisationPlan& plan);

// Copies tensors of `dtype`, or of stored rows, into packed form, quantised by `plan` (of this model): in the memory of
// `spare`, a version of the same model that nobody reads any more, or in fresh memory when it is
// null, by `num_threads` threads. Where the plan quantises, served_digests has one of each matrix as it is multiplied, named
// "model.layers.0.qkv_proj", ..., "head", "embedding". Errors: CheckModelTensors.
absl::StatusOr<std::unique_ptr<ModelWeights>> PackModelWeights(
    const ModelConfig& config, const std::vector<HostTensor>& tensors, DType dtype,
    const QuantisationPlan& plan, std::unique_ptr<ModelWeights> spare = nullptr,
    int num_threads = 1);

}  // namespace tandem::rollout
