#include "trainer/policy/dense_attention.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/logsumexp.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <limits>

namespace tandem::trainer {
namespace {

// A prompt with its completions: tokens [begin, begin + count) of the row.
struct Part {
  int64_t begin = 0, count = 0;
  at::Tensor hidden;  // [count, count]: query i does not see key j

  Part(std::span<const Segment> segments, const AttentionForm& form, const at::Device& device)
      : begin(segments.front().begin), count(segments.back().end - begin) {
    at::Tensor mask = at::zeros({count, count}, at::kBool).fill_(true);
    bool* const rows = mask.data_ptr<bool>();
    const int64_t prompt = segments.front().end - begin;
    for (const Segment& segment : segments) {
      const int64_t own = segment.begin - begin, before = own == 0 ? 0 : prompt;
      for (int64_t i = own; i < segment.end - begin; ++i) {
        bool* const row = rows + i * count;
        // Positions: the prompt's from 0, and the segment's go on from its end.
        const int64_t position = before + i - own;
        const int64_t first =
            form.window > 0 ? std::max<int64_t>(0, position - form.window + 1) : 0;
        std::fill(row + std::min(first, before), row + before, false);
        std::fill(row + own + std::max<int64_t>(0, first - before), row + i + 1, false);
      }
    }
    hidden = mask.to(device);
  }
};

// Tokens of the part as [H, count, D] float32; heads of keys are repeated for their queries'.
at::Tensor Heads(const at::Tensor& x, const Part& part, const AttentionForm& form) {
  const at::Tensor heads = x.narrow(0, part.begin, part.count)
                               .to(at::kFloat)
                               .view({part.count, -1, form.head_dim})
                               .transpose(0, 1);
  return heads.repeat_interleave(form.num_heads / heads.size(0), 0);
}

// Scores before the mask, and with a soft cap their slope by the scaled products; else undefined.
struct Scores {
  at::Tensor value, slope;

  Scores(const at::Tensor& queries, const at::Tensor& keys, const Part& part,
         const AttentionForm& form)
      : value(at::matmul(queries, keys.transpose(1, 2)).mul_(form.scale)) {
    if (form.softcap > 0) {
      const at::Tensor share = value.div_(form.softcap).tanh_();
      slope = share.square().neg_().add_(1);
      value = share.mul(form.softcap);
    }
    value.masked_fill_(part.hidden, -std::numeric_limits<double>::infinity());
  }
};

// [H, count, D] -> [count, heads * D], sums over the query heads of a head of keys.
at::Tensor FromHeads(const at::Tensor& x, int64_t heads) {
  return x.unflatten(0, {heads, -1}).sum(1).transpose(0, 1).flatten(1);
}

}  // namespace

Attention DenseAttend(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                      std::span<const Segment> segments, const AttentionForm& form) {
  Attention result{at::zeros_like(q),
                   at::zeros({form.num_heads, q.size(0)}, q.options().dtype(at::kFloat))};
  for (const auto& of : SplitByPrompt(segments)) {
    const Part part(of, form, q.device());
    const Scores scores(Heads(q, part, form), Heads(k, part, form), part, form);
    const at::Tensor lse = at::logsumexp(scores.value, 2);
    const at::Tensor out =
        at::matmul((scores.value - lse.unsqueeze(2)).exp_(), Heads(v, part, form));
    result.out.narrow(0, part.begin, part.count).copy_(FromHeads(out, form.num_heads));
    result.lse.narrow(1, part.begin, part.count).copy_(lse);
  }
  return result;
}

AttentionGrads DenseAttendBackward(const at::Tensor& out_grad, const at::Tensor& q,
                                   const at::Tensor& k, const at::Tensor& v,
                                   const Attention& attention, std::span<const Segment> segments,
                                   const AttentionForm& form) {
  AttentionGrads grads{at::zeros_like(q), at::zeros_like(k), at::zeros_like(v)};
  for (const auto& of : SplitByPrompt(segments)) {
    const Part part(of, form, q.device());
    const at::Tensor queries = Heads(q, part, form), keys = Heads(k, part, form);
    const at::Tensor out_grads = Heads(out_grad, part, form), values = Heads(v, part, form);
    const Scores scores(queries, keys, part, form);
    const at::Tensor lse = attention.lse.narrow(1, part.begin, part.count).unsqueeze(2);
    const at::Tensor shares = (scores.value - lse).exp_();
    const at::Tensor delta =
        (out_grads * Heads(attention.out, part, form)).sum(2, /*keepdim=*/true);
    at::Tensor scores_grad =
        (at::matmul(out_grads, values.transpose(1, 2)) - delta).mul_(shares).mul_(form.scale);
    if (scores.slope.defined()) scores_grad.mul_(scores.slope);
    const auto put = [&](at::Tensor& grad, const at::Tensor& by_heads, int64_t heads) {
      grad.narrow(0, part.begin, part.count).copy_(FromHeads(by_heads, heads));
    };
    put(grads.q, at::matmul(scores_grad, keys), form.num_heads);
    put(grads.k, at::matmul(scores_grad.transpose(1, 2), queries), form.num_kv_heads);
    put(grads.v, at::matmul(shares.transpose(1, 2), out_grads), form.num_kv_heads);
  }
  return grads;
}

}  // namespace tandem::trainer
