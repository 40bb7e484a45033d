#include "trainer/policy/cuda/run_attention.h"

#include <ATen/Context.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/_flash_attention_backward.h>
#include <ATen/ops/_flash_attention_forward.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/logsumexp.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/ones.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <tuple>

namespace tandem::trainer {
namespace {

bool UseFlash(const at::Tensor& q) { return q.is_cuda() && q.scalar_type() == at::kBFloat16; }

at::Tensor EndsFromZero(const std::vector<int32_t>& ends, const at::Device& device,
                        int64_t& longest) {
  at::Tensor result = at::empty({static_cast<int64_t>(ends.size()) + 1}, at::kInt);
  int32_t* const out = result.data_ptr<int32_t>();
  out[0] = 0;
  for (size_t r = 0; r < ends.size(); ++r) {
    out[r + 1] = ends[r];
    longest = std::max<int64_t>(longest, out[r + 1] - out[r]);
  }
  return result.to(device);
}

Attention FlashForward(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                       const AttentionRuns& runs, double scale) {
  const auto result = at::_flash_attention_forward(
      q, k, v, runs.device_query_ends, runs.device_key_ends, runs.longest_query, runs.longest_key,
      /*dropout_p=*/0.0, runs.causal, /*return_debug_mask=*/false, scale);
  return {std::get<0>(result), std::get<1>(result)};
}

// Flash attention's backward adds in any order unless this is on.
class DeterministicScope {
 public:
  DeterministicScope()
      : was_(at::globalContext().deterministicAlgorithms()),
        warned_(at::globalContext().deterministicAlgorithmsWarnOnly()) {
    at::globalContext().setDeterministicAlgorithms(true, /*warn_only=*/false);
  }
  ~DeterministicScope() { at::globalContext().setDeterministicAlgorithms(was_, warned_); }
  DeterministicScope(const DeterministicScope&) = delete;
  DeterministicScope& operator=(const DeterministicScope&) = delete;

 private:
  const bool was_, warned_;
};

AttentionGrads FlashBackward(const at::Tensor& out_grad, const at::Tensor& q, const at::Tensor& k,
                             const at::Tensor& v, const Attention& attention,
                             const AttentionRuns& runs, double scale) {
  const at::Tensor no_dropout = at::empty({2}, q.options().dtype(at::kUInt64));
  const DeterministicScope deterministic;
  const auto [dq, dk, dv] = at::_flash_attention_backward(
      out_grad, q, k, v, attention.out, attention.lse.contiguous(), runs.device_query_ends,
      runs.device_key_ends, runs.longest_query, runs.longest_key, /*dropout_p=*/0.0, runs.causal,
      no_dropout, no_dropout, scale);
  return {dq, dk, dv};
}

// One run, [H, rows, D] float32 each.
struct Run {
  int64_t query = 0, queries = 0, key = 0, keys = 0;  // first and count
};

std::vector<Run> ListRuns(const AttentionRuns& runs) {
  std::vector<Run> list;
  Run at;
  for (size_t r = 0; r < runs.query_ends.size(); ++r) {
    at.query += at.queries;
    at.key += at.keys;
    at.queries = runs.query_ends[r] - at.query;
    at.keys = runs.key_ends[r] - at.key;
    list.push_back(at);
  }
  return list;
}

// [N, heads, D] -> [H, count, D] float32; heads of keys are repeated for their queries'.
at::Tensor Heads(const at::Tensor& x, int64_t first, int64_t count, int64_t num_heads) {
  const at::Tensor heads = x.narrow(0, first, count).to(at::kFloat).transpose(0, 1);
  return heads.repeat_interleave(num_heads / x.size(1), 0);
}

at::Tensor Scores(const at::Tensor& queries, const at::Tensor& keys, double scale, bool causal) {
  at::Tensor scores = at::matmul(queries, keys.transpose(1, 2)).mul_(scale);
  if (!causal) return scores;
  const at::Tensor hidden =
      at::ones({queries.size(1), keys.size(1)}, queries.options().dtype(at::kBool)).triu(1);
  return scores.masked_fill_(hidden, -std::numeric_limits<double>::infinity());
}

Attention WrittenOut(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                     const AttentionRuns& runs, double scale) {
  const int64_t num_heads = q.size(1);
  Attention result{at::empty_like(q),
                   at::empty({num_heads, q.size(0)}, q.options().dtype(at::kFloat))};
  for (const Run& run : ListRuns(runs)) {
    const at::Tensor keys = Heads(k, run.key, run.keys, num_heads);
    const at::Tensor scores =
        Scores(Heads(q, run.query, run.queries, num_heads), keys, scale, runs.causal);
    const at::Tensor lse = at::logsumexp(scores, 2);
    const at::Tensor out =
        at::matmul((scores - lse.unsqueeze(2)).exp_(), Heads(v, run.key, run.keys, num_heads));
    result.out.narrow(0, run.query, run.queries).copy_(out.transpose(0, 1));
    result.lse.narrow(1, run.query, run.queries).copy_(lse);
  }
  return result;
}

// [H, rows, D] -> [rows, heads, D], sums over the query heads of a head of keys.
at::Tensor FromHeads(const at::Tensor& x, int64_t heads) {
  return x.unflatten(0, {heads, -1}).sum(1).transpose(0, 1);
}

AttentionGrads WrittenOutBackward(const at::Tensor& out_grad, const at::Tensor& q,
                                  const at::Tensor& k, const at::Tensor& v,
                                  const Attention& attention, const AttentionRuns& runs,
                                  double scale) {
  const int64_t num_heads = q.size(1), kv_heads = k.size(1);
  AttentionGrads grads{at::empty_like(q), at::empty_like(k), at::empty_like(v)};
  for (const Run& run : ListRuns(runs)) {
    const auto of_queries = [&](const at::Tensor& x) {
      return Heads(x, run.query, run.queries, num_heads);
    };
    const at::Tensor queries = of_queries(q), out_grads = of_queries(out_grad);
    const at::Tensor keys = Heads(k, run.key, run.keys, num_heads);
    const at::Tensor lse = attention.lse.narrow(1, run.query, run.queries).unsqueeze(2);
    const at::Tensor shares = (Scores(queries, keys, scale, runs.causal) - lse).exp_();
    const at::Tensor delta = (out_grads * of_queries(attention.out)).sum(2, /*keepdim=*/true);
    const at::Tensor values = Heads(v, run.key, run.keys, num_heads);
    const at::Tensor scores_grad =
        (at::matmul(out_grads, values.transpose(1, 2)) - delta).mul_(shares).mul_(scale);
    grads.q.narrow(0, run.query, run.queries)
        .copy_(FromHeads(at::matmul(scores_grad, keys), num_heads));
    grads.k.narrow(0, run.key, run.keys)
        .copy_(FromHeads(at::matmul(scores_grad.transpose(1, 2), queries), kv_heads));
    grads.v.narrow(0, run.key, run.keys)
        .copy_(FromHeads(at::matmul(shares.transpose(1, 2), out_grads), kv_heads));
  }
  return grads;
}

}  // namespace

// At least two queries: with one, flash attention swaps heads and queries, and lse lies otherwise.
AttentionRuns::AttentionRuns(const std::vector<int32_t>& of_queries,
                             const std::vector<int32_t>& of_keys, bool is_causal,
                             const at::Device& device)
    : query_ends(of_queries), key_ends(of_keys), causal(is_causal), longest_query(2) {
  device_query_ends = EndsFromZero(query_ends, device, longest_query);
  device_key_ends = EndsFromZero(key_ends, device, longest_key);
}

Attention AttendRuns(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                     const AttentionRuns& runs, double scale) {
  return UseFlash(q) ? FlashForward(q, k, v, runs, scale) : WrittenOut(q, k, v, runs, scale);
}

AttentionGrads AttendRunsBackward(const at::Tensor& out_grad, const at::Tensor& q,
                                  const at::Tensor& k, const at::Tensor& v,
                                  const Attention& attention, const AttentionRuns& runs,
                                  double scale) {
  return UseFlash(q) ? FlashBackward(out_grad, q, k, v, attention, runs, scale)
                     : WrittenOutBackward(out_grad, q, k, v, attention, runs, scale);
}

}  // namespace tandem::trainer
