// Log-probs of chosen tokens and their gradient, out of rows of fp32 logits.
//
// Forward: a block of threads for each row; each thread has sums against the largest logit it has
// seen so far, scales them down when a larger one comes, and the block scales all to the largest of
// the row. Four neighbouring logits go to one thread, whatever the row's address, so sums are in an
// order fixed by the row's length.
#include "common/cuda/pieces.h"
#include "trainer/policy/cuda/row_support.h"
#include "trainer/policy/cuda/training_kernels.h"

namespace tandem::trainer::cuda {
namespace {

using namespace tandem::cuda;  // pieces.h, device.h

constexpr int kThreads = 512;
constexpr int kWarps = kThreads / kWarp;
constexpr int kQuads = 4;  // of four logits, on their way to a thread at a time
constexpr float kInfinity = __builtin_huge_valf();
constexpr float kLowest = -3.402823466e38f;  // of finite floats

// Below e^-87 a term is nothing next to the largest, which is 1.
constexpr float kLeastExponent = -87.0f;

// Of e^y and e^y y with y = (logit - largest) inverse_temperature.
class Sums {
 public:
  __device__ explicit Sums(float inverse_temperature) : inverse_temperature_(inverse_temperature) {}

  __device__ void Add(const float (&logits)[4 * kQuads]) {
    float most = largest_;
#pragma unroll
    for (const float logit : logits) most = fmaxf(most, logit);
    ScaleTo(most);
    float mass = 0, first = 0;
#pragma unroll
    for (const float logit : logits) {
      const float y = (logit - largest_) * inverse_temperature_;
      const float e = y < kLeastExponent ? 0.0f : expf(y);  // NaN stays NaN
      mass += e;
      first += e * fmaxf(y, kLeastExponent);
    }
    mass_ += static_cast<double>(mass);
    first_ += static_cast<double>(first);
  }

  // Against a larger logit. Clamped: e^-100 of what there was is nothing next to the new largest,
  // and a finite exponent makes no NaN of a sum of 0.
  __device__ void ScaleTo(float largest) {
    const float down = fmaxf((largest_ - largest) * inverse_temperature_, -100.0f);
    const float scale = expf(down);
    first_ = static_cast<double>(scale) * (first_ + mass_ * static_cast<double>(down));
    mass_ *= static_cast<double>(scale);
    largest_ = largest;
  }

  // Over the block, at all its threads. `largest` and `sums`: one for each warp.
  __device__ void AddThreads(float* largest, double* sums) {
    const float of_warp = WarpMax(largest_);
    if (threadIdx.x % kWarp == 0) largest[threadIdx.x / kWarp] = of_warp;
    __syncthreads();
    float most = largest[0];
    for (int w = 1; w < kWarps; ++w) most = fmaxf(most, largest[w]);
    ScaleTo(most);
    mass_ = BlockSum(mass_, sums);
    __syncthreads();
    first_ = BlockSum(first_, sums);
  }

  __device__ float largest() const { return largest_; }
  __device__ double mass() const { return mass_; }
  __device__ double first() const { return first_; }

 private:
  const float inverse_temperature_;
  float largest_ = kLowest;
  double mass_ = 0, first_ = 0;
};

// quad(q) are logits 4 q .. 4 q + 3 of `count`, -inf behind the end.
template <typename Quad>
__device__ void AddRow(int64_t count, const Quad& quad, Sums& sums) {
  const int quads = static_cast<int>((count + 3) / 4);
  for (int begin = static_cast<int>(threadIdx.x); begin < quads; begin += kQuads * kThreads) {
    float logits[4 * kQuads];
#pragma unroll
    for (int k = 0; k < kQuads; ++k) {
      const int q = begin + k * kThreads;
      const float4 four =
          q < quads ? quad(q) : float4{-kInfinity, -kInfinity, -kInfinity, -kInfinity};
      logits[4 * k] = four.x;
      logits[4 * k + 1] = four.y;
      logits[4 * k + 2] = four.z;
      logits[4 * k + 3] = four.w;
    }
    sums.Add(logits);
  }
}

__global__ void __launch_bounds__(kThreads) LogprobKernel(TokenLogprobs task, bool fit) {
  __shared__ float largest[kWarps];
  __shared__ double block_sums[kWarps];
  const int64_t row = blockIdx.x, vocabulary = task.of.vocabulary;
  const float* logits = task.of.logits + row * vocabulary;
  const Support support = SupportOf(task.of, row);
  Sums sums(task.of.inverse_temperature);
  if (support.count > 0) {
    const auto at = [&](int64_t i) {
      return i < support.count ? logits[support.ids[i]] : -kInfinity;
    };
    const auto quad = [&](int64_t q) {
      return float4{at(4 * q), at(4 * q + 1), at(4 * q + 2), at(4 * q + 3)};
    };
    AddRow(support.count, quad, sums);
  } else if (fit) {
    const auto* const quads = reinterpret_cast<const float4*>(logits);
    AddRow(
        vocabulary, [&](int64_t q) { return quads[q]; }, sums);
  } else {
    const auto at = [&](int64_t i) { return i < vocabulary ? logits[i] : -kInfinity; };
    const auto quad = [&](int64_t q) {
      return float4{at(4 * q), at(4 * q + 1), at(4 * q + 2), at(4 * q + 3)};
    };
    AddRow(vocabulary, quad, sums);
  }
  sums.AddThreads(largest, block_sums);
  if (threadIdx.x != 0) return;
  const double inverse_temperature = static_cast<double>(task.of.inverse_temperature);
  const double log_mass = log(sums.mass());
  const double chosen = static_cast<double>(logits[task.of.tokens[row]] - sums.largest());
  task.logprobs[row] = static_cast<float>(chosen * inverse_temperature - log_mass);
  task.entropies[row] = static_cast<float>(fmax(0.0, log_mass - sums.first() / sums.mass()));
  task.lse[row] =
      static_cast<float>(static_cast<double>(sums.largest()) * inverse_temperature + log_mass);
}

constexpr int kGradThreads = 256;
constexpr int kGradPieces = 4;

// What a row's logits have in common.
struct RowGrad {
  float scale, inverse_temperature, lse;
  float entropy, entropy_slope;  // 0, 0 without a gradient by the entropy
  int64_t token;
  __device__ float Of(float logit, int64_t id) const {
    const float log_p = fmaf(logit, inverse_temperature, -lse), p = expf(log_p);
    const float of_logprob = scale * ((id == token ? 1.0f : 0.0f) - p);
    if (entropy_slope == 0) return of_logprob;
    return of_logprob - entropy_slope * p * (fmaxf(log_p, -87.0f) + entropy);
  }
};

// Eight columns of a row with a support: reads only the logits in it.
__device__ Eight GradOver(const Support& support, const RowGrad& grad, const float* logits,
                          int64_t column) {
  Eight out = {};
  int64_t at = FirstFrom(support.ids, 0, support.count, column);
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    if (at >= support.count || support.ids[at] != column + i) continue;
    out.x[i] = grad.Of(logits[column + i], column + i);
    ++at;
  }
  return out;
}

// Grid: rows, tiles of columns. A thread reads its own logits before it writes there.
template <typename T>
__global__ void __launch_bounds__(kGradThreads) GradKernel(TokenLogprobsBackward task, bool fit) {
  const int64_t row = blockIdx.x, vocabulary = task.of.vocabulary;
  const float* logits = task.of.logits + row * vocabulary;
  T* out = static_cast<T*>(task.logits_grad) + row * vocabulary;
  const float inverse_temperature = task.of.inverse_temperature;
  const bool of_entropy = task.entropies_grad != nullptr;
  const RowGrad grad = {task.logprobs_grad[row] * inverse_temperature,
                        inverse_temperature,
                        task.lse[row],
                        of_entropy ? task.entropies[row] : 0,
                        of_entropy ? task.entropies_grad[row] * inverse_temperature : 0,
                        task.of.tokens[row]};
  const Support support = SupportOf(task.of, row);
  const int64_t first =
      (static_cast<int64_t>(blockIdx.y) * kGradPieces * kGradThreads + threadIdx.x) * 8;
  RawFp32 raw[kGradPieces];
#pragma unroll
  for (int k = 0; k < kGradPieces; ++k) {
    const int64_t column = first + k * kGradThreads * 8;
    if (support.count == 0 && column < vocabulary) {
      raw[k] = LoadPiece(logits, column, vocabulary, fit);
    }
  }
#pragma unroll
  for (int k = 0; k < kGradPieces; ++k) {
    const int64_t column = first + k * kGradThreads * 8;
    if (column >= vocabulary) break;
    Eight eight;
    if (support.count > 0) {
      eight = GradOver(support, grad, logits, column);
    } else {
      eight = Widen(raw[k]);
#pragma unroll
      for (int i = 0; i < 8; ++i) eight.x[i] = grad.Of(eight.x[i], column + i);
    }
    StorePiece(eight, out, column, vocabulary, fit);
  }
}

}  // namespace

void RunTokenLogprobs(const TokenLogprobs& task, Stream stream) {
  if (task.of.rows == 0) return;
  const bool fit =
      task.of.vocabulary % 4 == 0 && reinterpret_cast<uintptr_t>(task.of.logits) % 16 == 0;
  TANDEM_LAUNCH(LogprobKernel, GridOf(task.of.rows), kThreads, stream, task, fit);
}

void RunTokenLogprobsBackward(const TokenLogprobsBackward& task, Stream stream) {
  if (task.of.rows == 0) return;
  const bool fit = PiecesFit(task.of.vocabulary, {task.of.logits, task.logits_grad});
  constexpr int64_t kTile = 8 * kGradPieces * kGradThreads;
  const dim3 grid(GridOf(task.of.rows), GridOf((task.of.vocabulary + kTile - 1) / kTile), 1);
  WithElement(task.element, [&](auto out) {
    auto* const kernel = &GradKernel<decltype(out)>;
    TANDEM_LAUNCH(kernel, grid, kGradThreads, stream, task, fit);
  });
}

}  // namespace tandem::trainer::cuda
