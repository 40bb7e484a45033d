// Log-probs and entropies of chosen tokens out of final hidden states, without the fp32 logits of
// the whole batch: logits exist for a chunk of rows at a time, forward and backward. Part of the
// policy (arrows 5 and 7); the only place with a log-softmax, always fp32.
#ifndef TANDEM_TRAINER_POLICY_CHUNKED_LOGPROBS_H_
#define TANDEM_TRAINER_POLICY_CHUNKED_LOGPROBS_H_

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

// log softmax(hidden head^T / temperature)[tokens] per row. hidden [R, E] float32, head's weight
// [V, E]; at most `max_kept_logits` are kept for the backward pass, all or none: saves one of its
// products. Row r's softmax is over support[r] where that has ids, unpacked for a chunk at a time;
// no elements: over all, everywhere.
ChosenLogprobs ChosenTokenLogprobs(const LayerOps& ops, const at::Tensor& hidden,
                                   const LinearLayer& head, const std::vector<int64_t>& tokens,
                                   double temperature, int64_t max_kept_logits,
                                   std::span<const SupportView> support = {});

// Gradient of `hidden` from that of the log-probs, [R]; adds that of `head` to its weight_grad.
// Once only per result: kept logits are overwritten.
at::Tensor ChosenTokenLogprobsBackward(const LayerOps& ops, const at::Tensor& hidden,
                                       const LinearLayer& head, const std::vector<int64_t>& tokens,
                                       double temperature, ChosenLogprobs& result,
                                       const at::Tensor& logprobs_grad,
                                       std::span<const SupportView> support = {});

}  // namespace tandem::trainer

#endif  // TANDEM_TRAINER_POLICY_CHUNKED_LOGPROBS_H_
