// Log-probs and entropies of chosen tokens from final hidden states: the end of the policy's
// forward (stages 5 and 7), and the only place with a log-softmax, always in fp32.
//
// The idea: logits of a whole batch, [T, V], would be the largest tensor of a train step. One
// number per row is wanted of them, so they are computed for a chunk of rows at a time, reduced to
// the log-prob, the entropy and the log-sum-exp of each row, and thrown away. The backward pass
// computes the logits of a chunk again, and with the log-sum-exp it has the softmax without another
// reduction:
//
//   d logprob / d logit_v = ([v = token] - exp(logit_v / temperature - lse)) / temperature
//
// This costs one more product with the head. Where all logits fit below a limit they are kept, and
// the product is saved. Liger-Kernel's fused linear cross entropy does the same on GPUs.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>
#include <vector>

#include "common/model/token_support.h"
#include "trainer/policy/layer_ops.h"

namespace tandem::trainer {

struct ChosenLogprobs {
  at::Tensor logprobs;     // [R] float32
  at::Tensor entropies;    // [R] float32
  at::Tensor lse;          // [R] of the tempered logits; for the backward pass
  at::Tensor kept_logits;  // [R, V] or undefined; the backward pass overwrites it
};

// log softmax(hidden head^T / temperature)[tokens] of each row. hidden [R, E] float32, the head's
// weight [V, E]. All logits are kept for the backward pass if they are at most `max_kept_logits`
// numbers, else none. The softmax of row r is over support[r] where that has ids, and over the
// whole vocabulary where it has none or `support` is empty.
ChosenLogprobs ChosenTokenLogprobs(const LayerOps& ops, const at::Tensor& hidden,
                                   const LinearLayer& head, const std::vector<int64_t>& tokens,
                                   double temperature, int64_t max_kept_logits,
                                   std::span<const SupportView> support = {});

// Returns the gradient of `hidden` for that of the log-probs, [R], and of the entropies, [R] or
// undefined, and adds the head's gradient to its weight_grad. At most once per result: kept logits
// are overwritten.
at::Tensor ChosenTokenLogprobsBackward(const LayerOps& ops, const at::Tensor& hidden,
                                       const LinearLayer& head, const std::vector<int64_t>& tokens,
                                       double temperature, ChosenLogprobs& result,
                                       const at::Tensor& logprobs_grad,
                                       std::span<const SupportView> support = {},
                                       const at::Tensor& entropies_grad = {});

}  // namespace tandem::trainer
