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

struct LoraOptions {
  int64_t rank = 0;  // 0: no adapters
  double alpha = 16;
  // Linear layers by the ends of their names, such as q_proj or lm_head; all-linear: those of layers.
  std::vector<std::string> targets = {"all-linear"};
  double dropout = 0;                                 // of an adapter's input, in updates
  bool rslora = false;  // s = alpha / sqrt(rank) (Kalajdzievski 2023) instead of alpha / rank
  std::string start;    // PEFT directory that the adapters begin from; empty: A random, B zero

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

// A and B of each module, of `dtype`, in their order: A, B, A, B, ...
std::vector<TensorSpec> LoraTensors(const std::vector<LoraModule>& modules, int64_t rank,
                                    DType dtype);

}  // namespace tandem
