#include "trainer/chunked_logprobs.h"

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/mm.h>

#include <algorithm>
#include <cmath>

#include "common/model/token_distribution.h"
#include "common/tensor/instruction_set.h"
#include "trainer/vector_math.h"

namespace tandem::trainer {
namespace {

// logits -> scale * softmax, in place.
TANDEM_VECTOR_CLONES
void ScaledSoftmax(float* logits, int64_t count, float inverse_temperature, float lse,
                   float scale) {
#pragma omp simd
  for (int64_t v = 0; v < count; ++v) {
    logits[v] = scale * VectorExp(logits[v] * inverse_temperature - lse);
  }
}

bool HasSupport(Supports support, int64_t row) { return !support.empty() && !support[row].empty(); }

// The same over some ids; 0 elsewhere.
void SoftmaxOver(float* logits, int64_t count, std::span<const int32_t> ids,
                 float inverse_temperature, float lse, float scale) {
  std::vector<float> values;
  for (const int32_t id : ids) {
    values.push_back(scale * std::exp(logits[id] * inverse_temperature - lse));
  }
  std::fill_n(logits, count, 0.0f);
  for (size_t i = 0; i < ids.size(); ++i) logits[ids[i]] = values[i];
}

// As the server divides: in fp32.
float InverseTemperature(double temperature) { return 1.0f / static_cast<float>(temperature); }

}  // namespace

ChosenLogprobs ChosenTokenLogprobs(const at::Tensor& hidden, const LinearLayer& head,
                                   const std::vector<int64_t>& tokens, double temperature,
                                   int64_t max_kept_logits, Supports support) {
  const int64_t num_rows = hidden.size(0), vocabulary = head.weight.size(0);
  const float inverse_temperature = InverseTemperature(temperature);
  ChosenLogprobs result{at::empty({num_rows}, hidden.options()),
                        at::empty({num_rows}, hidden.options()),
                        at::empty({num_rows}, hidden.options()),
                        {}};
  float* logprobs = result.logprobs.data_ptr<float>();
  float* entropies = result.entropies.data_ptr<float>();
  float* lse = result.lse.data_ptr<float>();
  const InstructionSet set = ActiveInstructionSet();
  const bool keep = num_rows * vocabulary <= max_kept_logits;
  const int64_t chunk = keep ? num_rows : kLogitChunkRows;
  for (int64_t first = 0; first < num_rows; first += chunk) {
    const int64_t rows = std::min(chunk, num_rows - first);
    const at::Tensor logits = Linear(head, hidden.narrow(0, first, rows));
    const float* data = logits.data_ptr<float>();
    at::parallel_for(0, rows, 1, [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) {
        const float* row = data + r * vocabulary;
        const std::span<const float> logits_of_row(row, static_cast<size_t>(vocabulary));
        TokenDistribution d = DistributionOf(set, logits_of_row, inverse_temperature);
        if (HasSupport(support, first + r)) {
          d = DistributionOver(logits_of_row, support[first + r], inverse_temperature, d.largest);
        }
        logprobs[first + r] = d.LogProb(row[tokens[first + r]]);
        entropies[first + r] = d.entropy();
        lse[first + r] = static_cast<float>(
            static_cast<double>(d.largest) * inverse_temperature + d.log_mass);
      }
    });
    if (keep) result.kept_logits = logits;
  }
  return result;
}

at::Tensor ChosenTokenLogprobsBackward(const at::Tensor& hidden, const LinearLayer& head,
                                       const std::vector<int64_t>& tokens, double temperature,
                                       ChosenLogprobs& result, const at::Tensor& logprobs_grad,
                                       Supports support) {
  const int64_t num_rows = hidden.size(0), vocabulary = head.weight.size(0);
  const float inverse_temperature = InverseTemperature(temperature);
  const float* grad = logprobs_grad.data_ptr<float>();
  const float* lse = result.lse.data_ptr<float>();
  at::Tensor hidden_grad = at::empty_like(hidden);
  const bool kept = result.kept_logits.defined();
  const int64_t chunk = kept ? num_rows : kLogitChunkRows;
  for (int64_t first = 0; first < num_rows; first += chunk) {
    const int64_t rows = std::min(chunk, num_rows - first);
    const at::Tensor chunk_hidden = hidden.narrow(0, first, rows);
    at::Tensor logits = kept ? result.kept_logits : Linear(head, chunk_hidden);
    float* data = logits.data_ptr<float>();
    // d log p(a) / d logit_v = ([v = a] - p_v) / temperature
    at::parallel_for(0, rows, 1, [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) {
        const float scale = grad[first + r] * inverse_temperature;
        float* row = data + r * vocabulary;
        if (HasSupport(support, first + r)) {
          SoftmaxOver(row, vocabulary, support[first + r], inverse_temperature, lse[first + r],
                      -scale);
        } else {
          ScaledSoftmax(row, vocabulary, inverse_temperature, lse[first + r], -scale);
        }
        row[tokens[first + r]] += scale;
      }
    });
    hidden_grad.narrow(0, first, rows).copy_(LinearBackward(head, chunk_hidden, logits));
  }
  result.kept_logits.reset();
  return hidden_grad;
}

}  // namespace tandem::trainer
