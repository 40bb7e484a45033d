// Log-probs of chosen tokens with the bits that the draws recorded (stage 5). A block of threads
// takes a row and makes the two passes of row_distribution.h that the draw made: one for the
// largest logit, one for the sums. Ids outside a support add zeros, which change no sum, so the
// order of the sums is that of the draw.
#include "common/cuda/row_distribution.h"
#include "trainer/policy/cuda/row_support.h"
#include "trainer/policy/cuda/training_kernels.h"

namespace tandem::trainer::cuda {
namespace {

using namespace tandem::cuda;  // row_distribution.h, device.h

struct Shared {
  RowShared row;
  RowSums segments[kMaxRowSegments];
};

// Without a support every id may be drawn and terms are fp32; with one they are fp64.
__device__ RowLargest LargestOf(const float* logits, int size, const Support& support,
                                RowShared& shared) {
  SupportWalk walk(support);
  const auto allowed = [&](int id) { return support.count == 0 || walk.Has(id); };
  RowLargest largest = LargestBetween(logits, size, 0, size, allowed, shared);
  SettleLargest(largest);
  return largest;
}

// At warp 0; all threads call it.
__device__ RowSums SumsOf(const float* logits, int size, const Support& support,
                          const RowScale& scale, Shared& shared) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  SupportWalk walk(support);
  for (int s = warp; s < NumSegments(size); s += kRowWarps) {
    const RowSums sums =
        support.count == 0
            ? SumSegment(logits, size, s, [&](float logit, int) { return scale.Term(logit); })
            : SumSegment(logits, size, s, [&](float logit, int id) {
                return walk.Has(id) ? scale.WideTerm(logit) : RowSums{};
              });
    if (lane == 0) shared.segments[s] = sums;
  }
  __syncthreads();
  if (warp != 0) return {};
  return SumSegments(size, [&](int s) { return shared.segments[s]; });
}

__global__ void __launch_bounds__(kRowThreads) ExactLogprobKernel(TokenLogprobs task) {
  __shared__ Shared shared;
  const int64_t row = blockIdx.x;
  const int size = static_cast<int>(task.of.vocabulary);
  const float* logits = task.of.logits + row * task.of.vocabulary;
  const Support support = SupportOf(task.of, row);
  const RowLargest largest = LargestOf(logits, size, support, shared.row);
  if (largest.broken || largest.allowed == -kRowInfinity) {
    if (threadIdx.x != 0) return;
    task.logprobs[row] = task.entropies[row] = task.lse[row] = __builtin_nanf("");
    return;
  }
  const RowScale scale = {largest.allowed, task.of.inverse_temperature};
  const RowSums sums = SumsOf(logits, size, support, scale, shared);
  if (threadIdx.x != 0) return;
  const double log_mass = log(sums.mass);
  task.logprobs[row] = scale.LogProb(logits[task.of.tokens[row]], log_mass);
  task.entropies[row] = EntropyOf(sums, log_mass);
  task.lse[row] = static_cast<float>(static_cast<double>(scale.largest) *
                                         static_cast<double>(scale.inverse_temperature) +
                                     log_mass);
}

}  // namespace

void RunExactLogprobs(const TokenLogprobs& task, Stream stream) {
  if (task.of.rows == 0) return;
  TANDEM_LAUNCH(ExactLogprobKernel, GridOf(task.of.rows), kRowThreads, stream, task);
}

}  // namespace tandem::trainer::cuda
