#include "trainer/chunked_logprobs.h"

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/mm.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "trainer/layer_ops.h"
#include "trainer/vector_math.h"

namespace tandem::trainer {
namespace {

constexpr int64_t kSumBlock = 1024;  // terms summed in fp32 before they join a double

TANDEM_VECTOR_CLONES
float Largest(const float* logits, int64_t count) {
  float largest = -std::numeric_limits<float>::infinity();
#pragma omp simd reduction(max : largest)
  for (int64_t v = 0; v < count; ++v) largest = std::max(largest, logits[v]);
  return largest;
}

// Sums of e^z and z e^z over z = (logit - largest) * inverse_temperature.
TANDEM_VECTOR_CLONES
void ExpSums(const float* logits, int64_t count, float largest, float inverse_temperature,
             float* sum, float* weighted_sum) {
  float s = 0, w = 0;
#pragma omp simd reduction(+ : s, w)
  for (int64_t v = 0; v < count; ++v) {
    const float z = (logits[v] - largest) * inverse_temperature;
    const float e = VectorExp(z);
    s += e;
    w += z * e;
  }
  *sum = s;
  *weighted_sum = w;
}

// logits -> scale * softmax, in place.
TANDEM_VECTOR_CLONES
void ScaledSoftmax(float* logits, int64_t count, float inverse_temperature, float lse,
                   float scale) {
#pragma omp simd
  for (int64_t v = 0; v < count; ++v) {
    logits[v] = scale * VectorExp(logits[v] * inverse_temperature - lse);
  }
}

at::Tensor Logits(const at::Tensor& hidden, const at::Tensor& head) {
  return Linear({.weight = head}, hidden);
}

}  // namespace

RowStatistics LogitStatistics(const float* logits, int64_t vocabulary, float inverse_temperature) {
  const float largest = Largest(logits, vocabulary);
  double sum = 0, weighted_sum = 0;
  for (int64_t begin = 0; begin < vocabulary; begin += kSumBlock) {
    float block_sum = 0, block_weighted_sum = 0;
    ExpSums(logits + begin, std::min(kSumBlock, vocabulary - begin), largest, inverse_temperature,
            &block_sum, &block_weighted_sum);
    sum += block_sum;
    weighted_sum += block_weighted_sum;
  }
  const double log_sum = std::log(sum);
  return {.lse = static_cast<double>(largest) * inverse_temperature + log_sum,
          .entropy = log_sum - weighted_sum / sum};
}

ChosenLogprobs ChosenTokenLogprobs(const at::Tensor& hidden, const at::Tensor& head,
                                   const std::vector<int64_t>& tokens, double temperature,
                                   bool keep_logits) {
  const int64_t num_rows = hidden.size(0), vocabulary = head.size(0);
  const auto inverse_temperature = static_cast<float>(1.0 / temperature);
  ChosenLogprobs result{at::empty({num_rows}, hidden.options()),
                        at::empty({num_rows}, hidden.options()),
                        at::empty({num_rows}, hidden.options()),
                        {}};
  float* logprobs = result.logprobs.data_ptr<float>();
  float* entropies = result.entropies.data_ptr<float>();
  float* lse = result.lse.data_ptr<float>();
  const bool keep = keep_logits && num_rows <= kMaxKeptLogitRows;
  const int64_t chunk = keep ? num_rows : kLogitChunkRows;
  for (int64_t first = 0; first < num_rows; first += chunk) {
    const int64_t rows = std::min(chunk, num_rows - first);
    const at::Tensor logits = Logits(hidden.narrow(0, first, rows), head);
    const float* data = logits.data_ptr<float>();
    at::parallel_for(0, rows, 1, [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) {
        const float* row = data + r * vocabulary;
        const RowStatistics statistics = LogitStatistics(row, vocabulary, inverse_temperature);
        const double chosen = static_cast<double>(row[tokens[first + r]]) * inverse_temperature;
        logprobs[first + r] = static_cast<float>(chosen - statistics.lse);
        entropies[first + r] = static_cast<float>(statistics.entropy);
        lse[first + r] = static_cast<float>(statistics.lse);
      }
    });
    if (keep) result.kept_logits = logits;
  }
  return result;
}

at::Tensor ChosenTokenLogprobsBackward(const at::Tensor& hidden, const at::Tensor& head,
                                       const std::vector<int64_t>& tokens, double temperature,
                                       ChosenLogprobs& result, const at::Tensor& logprobs_grad,
                                       const at::Tensor& head_grad) {
  const int64_t num_rows = hidden.size(0), vocabulary = head.size(0);
  const auto inverse_temperature = static_cast<float>(1.0 / temperature);
  const LinearLayer layer{.weight = head, .weight_grad = head_grad};
  const float* grad = logprobs_grad.data_ptr<float>();
  const float* lse = result.lse.data_ptr<float>();
  at::Tensor hidden_grad = at::empty_like(hidden);
  const bool kept = result.kept_logits.defined();
  const int64_t chunk = kept ? num_rows : kLogitChunkRows;
  for (int64_t first = 0; first < num_rows; first += chunk) {
    const int64_t rows = std::min(chunk, num_rows - first);
    const at::Tensor chunk_hidden = hidden.narrow(0, first, rows);
    at::Tensor logits = kept ? result.kept_logits : Logits(chunk_hidden, head);
    float* data = logits.data_ptr<float>();
    // d log p(a) / d logit_v = ([v = a] - p_v) / temperature
    at::parallel_for(0, rows, 1, [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) {
        const float scale = grad[first + r] * inverse_temperature;
        float* row = data + r * vocabulary;
        ScaledSoftmax(row, vocabulary, inverse_temperature, lse[first + r], -scale);
        row[tokens[first + r]] += scale;
      }
    });
    hidden_grad.narrow(0, first, rows).copy_(LinearBackward(layer, chunk_hidden, logits));
  }
  result.kept_logits.reset();
  return hidden_grad;
}

}  // namespace tandem::trainer
