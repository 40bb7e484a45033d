// MakeCudaRunner: the engine's forward on a CUDA device (stage 2).
//
// Precision as on the CPU (model_runner.h): the residual stream, norms, rotary, softmax and logits
// are fp32; with ComputeDType::kBf16 weights, cache and the inputs of linear layers are bf16,
// products fp32. The head multiplies inputs of 16 significand bits, as two bf16 parts.
//
// Linear layers are cuBLAS's, whose results depend on how many rows there are, and prompts in bf16
// attend through the flash kernels of LibTorch; everything else computes each row by itself. With
// numerics `invariant` so do linear layers and prompts: by RunMatmul and paged attention
// (kernels.h), slower.
//
// Tokens are drawn and scored on the device: what comes back is an id and its record for each, a
// bit for each id of the vocabulary where a filter is on and the support is asked for, and the most
// likely ids where those are. A step of decodes alone is one CUDA graph (decode_step.h); any other
// has its inputs in one copy.
#pragma once

#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "common/model/model_config.h"
#include "common/model/numerics.h"
#include "rollout_server/engine/cuda/step/memory_plan.h"
#include "rollout_server/engine/forward/token_runner.h"

namespace tandem::rollout {

struct CudaRunnerOptions {
  ComputeDType dtype = ComputeDType::kBf16;
  int64_t num_blocks = 0;  // of the cache, KvBlockPool::kBlockTokens tokens each: MemoryPlan's
  bool invariant = false;  // a row's bits do not depend on the rows beside it; checked at the start
  bool graphs = true;      // replay steps of decodes as CUDA graphs
};

// The plan of the first device this process sees, from what is free there now. Creates the
// process's context on it.
//   FAILED_PRECONDITION  this build has no CUDA, or this machine no device
//   RESOURCE_EXHAUSTED   PlanMemory's
//   INTERNAL             the device failed
absl::StatusOr<cuda::MemoryPlan> PlanCudaMemory(const ModelConfig& config,
                                                const cuda::MemoryNeeds& needs);

// On the first device this process sees. Allocates the cache.
//   FAILED_PRECONDITION  this build has no CUDA, or this machine no device; invariant: a kernel
//   gives
//                        other bits in company
//   UNIMPLEMENTED        a shape the kernels have not: head_dim over 256 or no multiple of 8, a
//   hidden size that
//                        is no multiple of 4, a vocabulary over 2^20; invariant: a size of a linear
//                        layer's input that is no multiple of 8
//   RESOURCE_EXHAUSTED   no device memory for the cache
//   INTERNAL             the device failed
absl::StatusOr<std::unique_ptr<TokenRunner>> MakeCudaRunner(const ModelConfig& config,
                                                            const CudaRunnerOptions& options);

}  // namespace tandem::rollout
