// Rotary embedding and SwiGLU, forward and backward: a piece or a pair of pieces a thread.
#include <algorithm>

#include "common/cuda/pieces.h"
#include "trainer/policy/cuda/training_kernels.h"

namespace tandem::trainer::cuda {
namespace {

using namespace tandem::cuda;  // pieces.h, device.h

constexpr int kThreads = 256;

// A block for each row; a thread rotates eight pairs of one head.
template <typename In, typename Out>
__global__ void RotaryKernel(Rotary task, bool fit) {
  const int half = static_cast<int>(task.head_dim / 2), pieces = (half + 7) / 8;
  const int64_t row = blockIdx.x, width = task.heads * task.head_dim;
  const float* cosine = task.cosine + row * half;
  const float* sine = task.sine + row * half;
  const float sign = task.backward ? -1.0f : 1.0f;
  const int all = static_cast<int>(task.heads) * pieces;
  for (int i = static_cast<int>(threadIdx.x); i < all; i += static_cast<int>(blockDim.x)) {
    const int at = i % pieces * 8;
    const int64_t head = row * width + i / pieces * task.head_dim;
    const In* from = static_cast<const In*>(task.in) + head;
    Eight a = Widen(LoadPiece(from, at, half, fit));
    Eight b = Widen(LoadPiece(from + half, at, half, fit));
    const Eight c = Widen(LoadPiece(cosine, at, half, fit));
    const Eight s = Widen(LoadPiece(sine, at, half, fit));
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      const float x = a.x[j], y = b.x[j], turned = sign * s.x[j];
      a.x[j] = x * c.x[j] - y * turned;
      b.x[j] = y * c.x[j] + x * turned;
    }
    Out* to = static_cast<Out*>(task.out) + head;
    StorePiece(a, to, at, half, fit);
    StorePiece(b, to + half, at, half, fit);
  }
}

__device__ float Sigmoid(float x) { return 1.0f / (1.0f + expf(-x)); }

__device__ int64_t OwnPiece() {
  return (static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x) * 8;
}

template <typename In, typename Out>
__global__ void SwiGluKernel(SwiGlu task, bool fit) {
  const int64_t at = OwnPiece();
  if (at >= task.count) return;
  const Eight gate = Widen(LoadPiece(static_cast<const In*>(task.gate), at, task.count, fit));
  Eight out = Widen(LoadPiece(static_cast<const In*>(task.up), at, task.count, fit));
#pragma unroll
  for (int i = 0; i < 8; ++i) out.x[i] *= gate.x[i] * Sigmoid(gate.x[i]);
  StorePiece(out, static_cast<Out*>(task.out), at, task.count, fit);
}

template <typename G, typename In>
__global__ void SwiGluBackwardKernel(SwiGluBackward task, bool fit) {
  const int64_t at = OwnPiece();
  if (at >= task.count) return;
  In* const gates = static_cast<In*>(task.gate);
  In* const ups = static_cast<In*>(task.up);
  const Eight grad = Widen(LoadPiece(static_cast<const G*>(task.out_grad), at, task.count, fit));
  Eight gate = Widen(LoadPiece(static_cast<const In*>(gates), at, task.count, fit));
  Eight up = Widen(LoadPiece(static_cast<const In*>(ups), at, task.count, fit));
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const float sigmoid = Sigmoid(gate.x[i]), silu = gate.x[i] * sigmoid;
    gate.x[i] = grad.x[i] * up.x[i] * (sigmoid + silu * (1.0f - sigmoid));
    up.x[i] = grad.x[i] * silu;
  }
  StorePiece(gate, gates, at, task.count, fit);
  StorePiece(up, ups, at, task.count, fit);
}

unsigned FlatGrid(int64_t count) { return GridOf((NumPieces(count) + kThreads - 1) / kThreads); }

}  // namespace

void RunRotary(const Rotary& task, Stream stream) {
  const int64_t half = task.head_dim / 2, pieces = task.heads * NumPieces(half);
  if (task.rows == 0 || pieces == 0) return;
  const bool fit = PiecesFit(half, {task.in, task.cosine, task.sine, task.out});
  const int threads =
      static_cast<int>(std::min<int64_t>(kThreads, (pieces + kWarp - 1) / kWarp * kWarp));
  WithElement(task.in_element, [&](auto in) {
    WithElement(task.out_element, [&](auto out) {
      auto* const kernel = &RotaryKernel<decltype(in), decltype(out)>;
      TANDEM_LAUNCH(kernel, GridOf(task.rows), threads, stream, task, fit);
    });
  });
}

void RunSwiGlu(const SwiGlu& task, Stream stream) {
  if (task.count == 0) return;
  const bool fit = PiecesFit(task.count, {task.gate, task.up, task.out});
  WithElement(task.in_element, [&](auto in) {
    WithElement(task.out_element, [&](auto out) {
      auto* const kernel = &SwiGluKernel<decltype(in), decltype(out)>;
      TANDEM_LAUNCH(kernel, FlatGrid(task.count), kThreads, stream, task, fit);
    });
  });
}

void RunSwiGluBackward(const SwiGluBackward& task, Stream stream) {
  if (task.count == 0) return;
  const bool fit = PiecesFit(task.count, {task.out_grad, task.gate, task.up});
  WithElement(task.out_grad_element, [&](auto grad) {
    WithElement(task.in_element, [&](auto in) {
      auto* const kernel = &SwiGluBackwardKernel<decltype(grad), decltype(in)>;
      TANDEM_LAUNCH(kernel, FlatGrid(task.count), kThreads, stream, task, fit);
    });
  });
}

}  // namespace tandem::trainer::cuda
