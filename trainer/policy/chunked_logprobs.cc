#include "trainer/policy/chunked_logprobs.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#include <algorithm>
#include <span>

namespace tandem::trainer {
namespace {

// The supports of a chunk of rows, unpacked to plain ids. They take no more memory than the logits
// of the chunk.
class ChunkSupports {
 public:
  ChunkSupports(std::span<const SupportView> support, int64_t first, int64_t rows) {
    if (support.empty()) return;
    std::vector<size_t> ends;
    for (const SupportView& view :
         support.subspan(static_cast<size_t>(first), static_cast<size_t>(rows))) {
      view.AppendTo(&ids_);
      ends.push_back(ids_.size());
    }
    size_t begin = 0;
    for (const size_t end : ends) {
      rows_.push_back(std::span<const int32_t>(ids_).subspan(begin, end - begin));
      begin = end;
    }
  }

  Supports rows() const { return rows_; }

 private:
  std::vector<int32_t> ids_;
  std::vector<std::span<const int32_t>> rows_;
};

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
    const at::Tensor logits = ops.Logits(head, hidden.narrow(0, first, rows));
    const ChunkSupports supports(support, first, rows);
    const RowLogprobs scores =
        ops.Logprobs(logits, Part(tokens, first, rows), temperature, supports.rows());
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
                                       std::span<const SupportView> support) {
  const int64_t num_rows = hidden.size(0);
  at::Tensor hidden_grad = at::empty_like(hidden);
  const bool kept = result.kept_logits.defined();
  const int64_t chunk = kept ? num_rows : ops.logit_chunk_rows();
  for (int64_t first = 0; first < num_rows; first += chunk) {
    const int64_t rows = std::min(chunk, num_rows - first);
    const at::Tensor chunk_hidden = hidden.narrow(0, first, rows);
    const ChunkSupports supports(support, first, rows);
    const at::Tensor logits_grad = ops.LogprobsBackward(
        kept ? result.kept_logits : ops.Logits(head, chunk_hidden), Part(tokens, first, rows),
        temperature, supports.rows(), result.lse.narrow(0, first, rows),
        logprobs_grad.narrow(0, first, rows));
    hidden_grad.narrow(0, first, rows).copy_(ops.LinearBackward(head, chunk_hidden, logits_grad));
  }
  result.kept_logits.reset();
  return hidden_grad;
}

}  // namespace tandem::trainer
