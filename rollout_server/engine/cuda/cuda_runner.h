// MakeCudaRunner: the engine's forward on a CUDA device (arrow 2).
//
// Precision as on the CPU (model_runner.h): the residual stream, norms, rotary, softmax and logits
// are fp32; with ComputeDType::kBf16 weights, cache and the inputs of linear layers are bf16,
// products fp32. The head multiplies inputs of 16 significand bits, as two bf16 parts. Linear
// layers are cuBLAS's, whose results depend on how many rows there are; everything else does not.
//
// Chunks of prompts in bf16 attend through the flash kernels of LibTorch; single tokens, and
// everything in fp32, through paged attention (kernels.h). Tokens are drawn on the device: what
// comes back is an id and six floats for each, unless a call asks for the support or the most
// likely ids, which takes its rows of logits to the host.
#ifndef TANDEM_ROLLOUT_SERVER_ENGINE_CUDA_CUDA_RUNNER_H_
#define TANDEM_ROLLOUT_SERVER_ENGINE_CUDA_CUDA_RUNNER_H_

#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "common/model/model_config.h"
#include "rollout_server/engine/token_runner.h"

namespace tandem::rollout {

// On the first device this process sees. Allocates the cache: num_blocks blocks of
// KvBlockPool::kBlockTokens tokens.
//   FAILED_PRECONDITION  this build has no CUDA, or this machine no device
//   UNIMPLEMENTED        a shape the kernels have not: head_dim over 256 or no multiple of 8, a
//   hidden size
//                        that is no multiple of 4, a vocabulary over 2^20
//   RESOURCE_EXHAUSTED   no device memory for the cache
absl::StatusOr<std::unique_ptr<TokenRunner>> MakeCudaRunner(const ModelConfig& config,
                                                            ComputeDType dtype, int64_t num_blocks);

}  // namespace tandem::rollout

#endif  // TANDEM_ROLLOUT_SERVER_ENGINE_CUDA_CUDA_RUNNER_H_
