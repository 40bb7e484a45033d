// LoraShape: which linear layers of a model have adapters, and of what size (Hu et al. 2021, "LoRA":
// y = x W^T + s (x A^T) B^T, with A [rank, in] and B [out, rank]). Names and meanings are those of
// PEFT. Pure.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/model/model_config.h"
#include "common/weights/host_tensor.h"

namespace tandem {

class OptionBinder;

// What a run's servers get: A and B, which each merges into the base that it loaded, or the merged
// weights.
enum class LoraPush { kAdapters, kMerged };

struct LoraOptions {
  int64_t rank = 0;  // 0: no adapters
  double alpha = 16;
  // Linear layers by the ends of their names, such as q_proj or lm_head; all-linear: those of layers.
  std::vector<std::string> targets = {"all-linear"};
  double dropout = 0;   // of an adapter's input, in updates
  bool rslora = false;  // s = alpha / sqrt(rank) (Kalajdzievski 2023) instead of alpha / rank
  LoraPush push = LoraPush::kAdapters;
  std::string start;  // PEFT directory that the adapters begin from; empty: A random, B zero

  bool enabled() const { return rank > 0; }
  float scaling() const;  // s
  friend bool operator==(const LoraOptions&, const LoraOptions&) = default;
};
void BindOptions(OptionBinder& binder, LoraOptions& options);

// A linear layer with an adapter.
struct LoraModule {
  std::string weight;  // the tensor of the model: "model.layers.0.self_attn.q_proj.weight"
  int64_t out = 0, in = 0;

  std::string a_name() const;  // "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight"
  std::string b_name() const;
  friend bool operator==(const LoraModule&, const LoraModule&) = default;
};

// The modules that `options` names, in ModelTensors order. "all-linear" is every linear layer but the
// head, as in PEFT. Fused projections are one module (qkv_proj, gate_up_proj).
//   INVALID_ARGUMENT  a target that the model does not have (named, with those it has); lm_head of a
//                     model whose head is its embedding. The caller says which option it was
absl::StatusOr<std::vector<LoraModule>> LoraModules(const ModelConfig& config,
                                                    const LoraOptions& options);

// The modules of tensors that are named and ordered as LoraTensors names and orders them, F32, for a
// model with these tensors.
//   INVALID_ARGUMENT  a tensor that is no A or B of a linear layer of the model, or of another shape or
//                     dtype (named: where it is not applied, an adapter would have no effect); an A
//                     without its B; none
absl::StatusOr<std::vector<LoraModule>> ModulesOf(const std::vector<TensorSpec>& adapter,
                                                  int64_t rank,
                                                  const std::vector<TensorSpec>& model);

// A and B of each module, of `dtype`, in their order: A, B, A, B, ...
std::vector<TensorSpec> LoraTensors(const std::vector<LoraModule>& modules, int64_t rank,
                                    DType dtype);

}  // namespace tandem
