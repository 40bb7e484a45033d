// Kernels of the trainer's forward and backward on a CUDA device (stages 5 and 7), and of the cast
// before a push (stage 9). They compute what layer_kernels.h, cpu_layer_ops.h and weight_cast.h
// compute on the CPU. Values are stored in fp32 or bf16, as the Element of each array says; all
// arithmetic is in fp32 or wider.
//
// Pointers are to contiguous device memory with the alignment of their element. Rows that are
// multiples of 8 elements and begin at multiples of 16 bytes are loaded 16 bytes at a time. A call
// puts its kernels on the stream and returns; KernelError reports a failure.
//
// What holds: no kernel uses atomics. The sizes of the arrays fix the order of a sum, so equal
// inputs give equal bits. The length of a row alone fixes the order of the sums within it, so a row
// has the same bits in any batch and at any address. Fewer than 2^31 rows. Free of LibTorch and of
// CUDA headers. Thread-safe.
#pragma once

#include <cstdint>

#include "common/cuda/kernels.h"

namespace tandem::trainer::cuda {

using tandem::cuda::Element;
using tandem::cuda::ElementBytes;
using tandem::cuda::KernelError;
using tandem::cuda::Stream;

inline constexpr int64_t kMaxNormWidth = 16384;

// value = x rstd weight with rstd = 1 / sqrt(mean(x^2) + eps), row by row: a hidden state [T, E],
// or the heads of queries and keys [T * H, D].
struct Norm {
  const void* x = nullptr;        // [T, W]
  const float* weight = nullptr;  // [W]
  float eps = 0;
  int64_t rows = 0, width = 0;  // T, W; W <= kMaxNormWidth
  void* value = nullptr;        // [T, W]; may be x where the elements agree
  float* rstd = nullptr;        // [T]
  Element x_element = Element::kFp32, value_element = Element::kFp32;
};
void RunNorm(const Norm& task, Stream stream);

// x_grad (+)= rstd (weight value_grad - x rstd^2 mean(weight value_grad x)), and weight_grad += the
// sum over rows of value_grad x rstd, which is summed in fixed blocks of rows and over blocks in
// order.
struct NormBackward {
  const void* value_grad = nullptr;  // [T, W]
  const void* x = nullptr;           // [T, W]
  const float* weight = nullptr;     // [W]
  const float* rstd = nullptr;       // [T]
  int64_t rows = 0, width = 0;
  bool accumulate = false;       // x_grad += instead of =
  void* x_grad = nullptr;        // [T, W]; may be value_grad or x where the elements agree
  float* weight_grad = nullptr;  // [W], or null: that of a frozen weight
  float* scratch = nullptr;      // NormScratch floats, or null without weight_grad
  Element value_grad_element = Element::kFp32, x_element = Element::kFp32;
  Element x_grad_element = Element::kFp32;
};
int64_t NormScratch(int64_t rows, int64_t width);
void RunNormBackward(const NormBackward& task, Stream stream);

// Rotates every head: element i pairs with i + D / 2, as ForwardKernels::rotate.
struct Rotary {
  const void* in = nullptr;       // [T, H * D]
  const float* cosine = nullptr;  // [T, D / 2]
  const float* sine = nullptr;
  int64_t rows = 0, heads = 0, head_dim = 0;  // T, H, D; D even
  bool backward = false;                      // by the opposite angles: gradients
  void* out = nullptr;                        // [T, H * D]; may be `in` where the elements agree
  Element in_element = Element::kFp32, out_element = Element::kFp32;
};
void RunRotary(const Rotary& task, Stream stream);

// out = gate sigmoid(gate) up, element by element.
struct SwiGlu {
  const void* gate = nullptr;  // [n]
  const void* up = nullptr;    // [n]
  int64_t count = 0;           // n
  void* out = nullptr;         // [n]
  Element in_element = Element::kFp32, out_element = Element::kFp32;
};
void RunSwiGlu(const SwiGlu& task, Stream stream);

struct SwiGluBackward {
  const void* out_grad = nullptr;  // [n]
  void* gate = nullptr;            // [n], becomes its gradient
  void* up = nullptr;              // [n], becomes its gradient
  int64_t count = 0;
  Element out_grad_element = Element::kFp32, in_element = Element::kFp32;
};
void RunSwiGluBackward(const SwiGluBackward& task, Stream stream);

// Rows of logits, and the ids over which the softmax of each goes. V <= 2^20.
struct LogitRows {
  const float* logits = nullptr;    // [R, V]; -inf has probability 0
  const int64_t* tokens = nullptr;  // [R] the chosen ids, in the rows' supports
  int64_t rows = 0, vocabulary = 0;
  float inverse_temperature = 1;
  // Row r's support is support_ids[support_offsets[r]] .. [support_offsets[r + 1]], rising; no
  // elements: all ids. Offsets null: all ids in every row.
  const int64_t* support_offsets = nullptr;  // [R + 1]
  const int32_t* support_ids = nullptr;
};

// Log-probs and entropies in one pass that reads each logit once: with y = (logit - largest)
// inverse_temperature, e^y and e^y y are summed 16 at a time in fp32 and these sums in fp64;
// log p = y_token - log(sum). A NaN or +inf among the logits, or a row of -inf only, gives a NaN
// log-prob.
struct TokenLogprobs {
  LogitRows of;
  float* logprobs = nullptr;   // [R]
  float* entropies = nullptr;  // [R]
  float* lse = nullptr;        // [R] log of the sum of e^(logit inverse_temperature)
};
void RunTokenLogprobs(const TokenLogprobs& task, Stream stream);

// The same numbers by the passes and in the order of DrawTokens
// (rollout_server/engine/cuda/draw/draw_kernel.h): given the logits a token was drawn from,
// logprobs and entropies have the bits of the draw's behaviour_logprob and entropy, on the device
// model and in the build that drew it. inverse_temperature is 1.0f / the draw's temperature in
// float, and 1 for a greedy draw. A row without a support belongs to a draw without filters and
// without forbidden ids, or to a greedy one; a support is the whole one of a draw with filters,
// whatever was forbidden. The numbers of a draw with forbidden ids and no filters cannot be
// computed, because it records no support. Reads the logits twice. A NaN or +inf anywhere in the
// row makes all three numbers NaN; a draw refuses such a row.
void RunExactLogprobs(const TokenLogprobs& task, Stream stream);

// logits_grad[r, v] = inverse_temperature (logprobs_grad[r] ([v = token] - p_v)
//                     - entropies_grad[r] p_v (log p_v + entropies[r])), 0 outside the support.
struct TokenLogprobsBackward {
  LogitRows of;
  const float* lse = nullptr;            // [R] as RunTokenLogprobs computed it
  const float* logprobs_grad = nullptr;  // [R]
  // [R], both or neither; null: no gradient by entropies.
  const float* entropies = nullptr;
  const float* entropies_grad = nullptr;
  void* logits_grad = nullptr;  // [R, V]; may be the logits where it is fp32
  Element element = Element::kFp32;
};
void RunTokenLogprobsBackward(const TokenLogprobsBackward& task, Stream stream);

// Casts masters to bf16 with the bits of common/tensor/bf16_rounding.h: DitherBf16(masters[i],
// name_hash, first + i), or NearestBf16.
struct WeightCast {
  const float* masters = nullptr;  // [n]
  int64_t count = 0;
  bool dither = false;
  uint64_t name_hash = 0;   // DitherNameHash of the tensor's name
  int64_t first = 0;        // element of the tensor that masters[0] is
  uint16_t* out = nullptr;  // [n]
};
void RunWeightCast(const WeightCast& task, Stream stream);

}  // namespace tandem::trainer::cuda
