#include "trainer/policy/chunked_logprobs.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#include <algorithm>
#include <span>

#include "trainer/policy/adapters/adapted_linear.h"

namespace tandem::trainer {
namespace {

// The supports of a chunk of rows, unpacked to plain ids in `ids`. They take no more memory than
// the logits of the chunk.
std::vector<std::span<const int32_t>> Unpack(std::span<const SupportView> support, int64_t first,
                                             int64_t rows, std::vector<int32_t>& ids) {
  if (support.empty()) return {};
  std::vector<size_t> ends = {0};
  for (int64_t r = first; r < first + rows; ++r) {
    support[static_cast<size_t>(r)].AppendTo(&ids);
    ends.push_back(ids.size());
  }
  std::vector<std::span<const int32_t>> unpacked;
  for (size_t i = 1; i < ends.size(); ++i) {
    unpacked.push_back(std::span(ids).subspan(ends[i - 1], ends[i] - ends[i - 1]));
  }
  return unpacked;
}

// Logits as the model has them: with the head's soft cap.
at::Tensor CappedLogits(const LayerOps& ops, const LinearLayer& head, const at::Tensor& hidden,
                        int64_t first) {
  at::Tensor logits = AdaptedLogits(ops, head, hidden, first);
  if (head.softcap > 0) ops.SoftCap(logits, head.softcap);
  return logits;
}

std::span<const int64_t> Part(const std::vector<int64_t>& tokens, int64_t first, int64_t rows) {
  return std::span(tokens).subspan(static_cast<size_t>(first), static_cast<size_t>(rows));
}

}  // namespace

ChosenLogprobs ChosenTokenLogprobs(const LayerOps& ops, const at::Tensor& hidden,
                                   const LinearLayer& head, const std::vector<int64_t>& tokens,
                                   double temperature, int64_t max_kept_logits,
                                   std::span<const SupportView> support) {
  const int64_t num_rows = hidden.size(0), vocabulary = head.weight.size(0);
  const auto numbers = [&] { return at::empty({num_rows}, hidden.options()); };
  ChosenLogprobs result{numbers(), numbers(), numbers(), {}};
  const bool keep = num_rows * vocabulary <= max_kept_logits;
  const int64_t chunk = keep ? num_rows : ops.logit_chunk_rows();
  for (int64_t first = 0; first < num_rows; first += chunk) {
    const int64_t rows = std::min(chunk, num_rows - first);
    const at::Tensor logits = CappedLogits(ops, head, hidden.narrow(0, first, rows), first);
    std::vector<int32_t> ids;
    const auto supports = Unpack(support, first, rows, ids);
    const RowLogprobs scores =
        ops.Logprobs(logits, Part(tokens, first, rows), temperature, supports);
    result.logprobs.narrow(0, first, rows).copy_(scores.logprobs);
    result.entropies.narrow(0, first, rows).copy_(scores.entropies);
    result.lse.narrow(0, first, rows).copy_(scores.lse);
    if (keep) result.kept_logits = logits;
  }
  return result;
}

at::Tensor ChosenTokenLogprobsBackward(const LayerOps& ops, const at::Tensor& hidden,
                                       const LinearLayer& head, const std::vector<int64_t>& tokens,
                                       double temperature, ChosenLogprobs& result,
                                       const at::Tensor& logprobs_grad,
                                       std::span<const SupportView> support,
                                       const at::Tensor& entropies_grad) {
  const int64_t num_rows = hidden.size(0);
  at::Tensor hidden_grad = at::empty_like(hidden);
  const bool kept = result.kept_logits.defined();
  const int64_t chunk = kept ? num_rows : ops.logit_chunk_rows();
  for (int64_t first = 0; first < num_rows; first += chunk) {
    const int64_t rows = std::min(chunk, num_rows - first);
    const at::Tensor chunk_hidden = hidden.narrow(0, first, rows);
    std::vector<int32_t> ids;
    const auto supports = Unpack(support, first, rows, ids);
    EntropyGrad entropy;
    if (entropies_grad.defined()) {
      entropy = {result.entropies.narrow(0, first, rows), entropies_grad.narrow(0, first, rows)};
    }
    const at::Tensor logits =
        kept ? result.kept_logits : CappedLogits(ops, head, chunk_hidden, first);
    at::Tensor slope;  // of capped logits by the head's product: 1 - (logit / cap)^2
    if (head.softcap > 0) slope = logits.div(head.softcap).square_().neg_().add_(1);
    at::Tensor logits_grad = ops.LogprobsBackward(logits, Part(tokens, first, rows), temperature,
                                                  supports, result.lse.narrow(0, first, rows),
                                                  logprobs_grad.narrow(0, first, rows), entropy);
    if (slope.defined()) logits_grad.mul_(slope);
    hidden_grad.narrow(0, first, rows)
        .copy_(AdaptedLinearBackward(ops, head, chunk_hidden, logits_grad, first));
  }
  result.kept_logits.reset();
  return hidden_grad;
}

}  // namespace tandem::trainer
