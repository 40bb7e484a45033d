// Accesses a row in pieces of eight elements, with one load or store each where the row's length
// and address allow it and element by element elsewhere. Each thread gets the same elements in both
// cases, so sums have the same order. Only for .cu files, as device.h.
#pragma once

#include <cstdint>
#include <initializer_list>

#include "common/cuda/device.h"

namespace tandem::cuda {

constexpr int64_t NumPieces(int64_t width) { return (width + 7) / 8; }

// True if consecutive rows of `width` elements (fp32 or bf16) at these addresses can be accessed in
// whole pieces.
inline bool PiecesFit(int64_t width, std::initializer_list<const void*> rows) {
  uintptr_t all = 0;
  for (const void* const row : rows) all |= reinterpret_cast<uintptr_t>(row);
  return width % 8 == 0 && all % 16 == 0;
}

__device__ inline RawFp32 Pack(const float (&x)[8]) {
  return {float4{x[0], x[1], x[2], x[3]}, float4{x[4], x[5], x[6], x[7]}};
}
__device__ inline RawBf16 Pack(const uint16_t (&x)[8]) {
  uint32_t words[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) words[i] = x[2 * i] | static_cast<uint32_t>(x[2 * i + 1]) << 16;
  return {uint4{words[0], words[1], words[2], words[3]}};
}

// Elements `at` .. `at` + 7 of a row of `width` elements, 0 past its end. `fit` is the result of
// PiecesFit.
template <typename T>
__device__ inline auto LoadPiece(const T* row, int64_t at, int64_t width, bool fit) {
  if (fit) return LoadRaw(row + at);
  T x[8];
#pragma unroll
  for (int i = 0; i < 8; ++i) x[i] = at + i < width ? row[at + i] : T{};
  return Pack(x);
}

__device__ inline void StoreRaw(const RawFp32& raw, float* to) {
  *reinterpret_cast<float4*>(to) = raw.a;
  *reinterpret_cast<float4*>(to + 4) = raw.b;
}
__device__ inline void StoreRaw(const RawBf16& raw, uint16_t* to) {
  *reinterpret_cast<uint4*>(to) = raw.bits;
}

template <typename T>
__device__ inline void StorePiece(const T (&x)[8], T* row, int64_t at, int64_t width, bool fit) {
  if (fit) return StoreRaw(Pack(x), row + at);
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    if (at + i < width) row[at + i] = x[i];
  }
}
template <typename T>
__device__ inline void StorePiece(const Eight& piece, T* row, int64_t at, int64_t width, bool fit) {
  T x[8];
#pragma unroll
  for (int i = 0; i < 8; ++i) Store(piece.x[i], &x[i]);
  StorePiece(x, row, at, width, fit);
}

// Calls call(T{}) with the C++ type that stores the element.
template <typename Call>
void WithElement(Element element, const Call& call) {
  if (element == Element::kBf16) {
    call(uint16_t{});
  } else {
    call(float{});
  }
}

}  // namespace tandem::cuda
