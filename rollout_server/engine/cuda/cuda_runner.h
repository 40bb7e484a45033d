// MakeCudaRunner: the engine's forward on a CUDA device (stage 2).
//
// Precision is as on the CPU (model_runner.h): the residual stream, norms, rotary, softmax and
// logits are fp32. With ComputeDType::kBf16 weights, cache and the inputs of linear layers are
// bf16, and products are fp32. The head multiplies inputs of 16 significand bits, as two bf16
// parts.
//
// Linear layers are cuBLAS calls, whose bits depend on the number of rows, and prompts in bf16 use
// LibTorch's flash attention. All other kernels compute each row by itself. With numerics
// `invariant` linear layers and prompts do so too, by RunMatmul and paged attention
// (common/cuda/kernels.h), which are slower.
//
// Tokens are sampled and scored on the device. Copied back are an id and its record for each token,
// a bit set over the vocabulary where a filter is on and the support is requested, and the most
// likely ids where those are requested. A step of decodes alone is one CUDA graph (decode_step.h);
// any other step sends its inputs in one copy.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "common/model/model_config.h"
#include "rollout_server/engine/cuda/step/memory_plan.h"
#include "rollout_server/engine/engine_options.h"
#include "rollout_server/engine/forward/token_runner.h"

namespace tandem::rollout {

// The memory plan for the first device that this process sees, from what is free there now. Creates
// the process's context on it.
//   FAILED_PRECONDITION  this build has no CUDA, or this machine no device
//   RESOURCE_EXHAUSTED   PlanMemory's
//   INTERNAL             the device failed
absl::StatusOr<cuda::MemoryPlan> PlanCudaMemory(const ModelConfig& config,
                                                const EngineOptions& options);

// A runner on the first device that this process sees. Allocates the cache, of
// options.num_blocks(). With a numerics other than `fast`, a row's bits do not depend on the batch,
// which is checked.
//   FAILED_PRECONDITION  this build has no CUDA, or this machine no device; with such numerics, a
//                        kernel's bits depend on the batch composition
//   UNIMPLEMENTED        a shape that the kernels do not support: head_dim over 256 or no multiple
//                        of 8, a hidden size that is no multiple of 4, a vocabulary over 2^20; with
//                        such numerics, a linear layer whose input size is no multiple of 8
//   RESOURCE_EXHAUSTED   no device memory for the cache
//   INTERNAL             the device failed
absl::StatusOr<std::unique_ptr<TokenRunner>> MakeCudaRunner(const ModelConfig& config,
                                                            const EngineOptions& options);

}  // namespace tandem::rollout
