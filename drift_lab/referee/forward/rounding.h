// Roundings of single numbers, which compile to vectors. Used by k_quants.cc and rounded_tensors.cc.
#pragma once

#include <c10/util/Half.h>

#include <algorithm>

namespace tandem::drift {

// The nearest whole number; halves go to the even one. |x| is below 2^22.
inline float Nearest(float x) {
  constexpr float kUnitInLastPlace = 12582912.0F;  // 1.5 * 2^23
  return (x + kUnitInLastPlace) - kUnitInLastPlace;
}

inline float NearestBetween(float x, float least, float most) {
  return std::min(std::max(Nearest(x), least), most);
}

// As fp16 stores it.
inline float AsHalf(float x) { return static_cast<float>(c10::Half(x)); }

}  // namespace tandem::drift
