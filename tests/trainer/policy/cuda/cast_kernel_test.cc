// The cast on the device: bit for bit the CPU's.
#include <gtest/gtest.h>

#include <limits>

#include "common/tensor/bf16_rounding.h"
#include "tests/trainer/policy/cuda/element_array.h"
#include "trainer/policy/cuda/training_kernels.h"
#include "trainer/weight_push/weight_cast.h"

namespace tandem::trainer::cuda {
namespace {

constexpr char kName[] = "model.layers.0.mlp.up_proj.weight";

// Every kind of float: of random bits, with ties, the largest, infinities and NaNs at the front.
std::vector<float> Masters(size_t count) {
  using Limits = std::numeric_limits<float>;
  std::vector<float> values = {0.0f,
                               -0.0f,
                               1.0f,
                               1.0f + 0x1p-8f,
                               1.0f + 0x1p-8f + 0x1p-7f,
                               Limits::max(),
                               -Limits::max(),
                               Limits::infinity(),
                               -Limits::infinity(),
                               Limits::quiet_NaN(),
                               Limits::denorm_min(),
                               std::bit_cast<float>(0x7f800001u),
                               std::bit_cast<float>(0x7f7f8000u)};
  std::mt19937 random(7);
  while (values.size() < count)
    values.push_back(std::bit_cast<float>(static_cast<uint32_t>(random())));
  values.resize(count);
  return values;
}

std::vector<uint16_t> CastOf(const std::vector<float>& masters, bool dither, int64_t first,
                             size_t lead = 0) {
  const ElementArray d_masters(Element::kFp32, masters, lead);
  const DeviceArray<uint16_t> out(masters.size());
  RunWeightCast({.masters = static_cast<const float*>(d_masters.data()),
                 .count = static_cast<int64_t>(masters.size()),
                 .dither = dither,
                 .name_hash = DitherNameHash(kName),
                 .first = first,
                 .out = out.data()},
                nullptr);
  return out.Read();
}

TEST(CastKernel, RoundsAsTheCpuBitForBit) {
  for (const size_t count : {size_t{1}, size_t{13}, size_t{16}, size_t{2048}, size_t{5000}}) {
    for (const int64_t first : {int64_t{0}, int64_t{1001}, int64_t{1} << 33}) {
      for (const Rounding rounding : {Rounding::kNearest, Rounding::kDither}) {
        SCOPED_TRACE(count);
        const std::vector<float> masters = Masters(count);
        std::vector<uint16_t> want(count);
        CastToBf16(kName, first, masters.data(), static_cast<int64_t>(count), rounding,
                   want.data());
        const bool dither = rounding == Rounding::kDither;
        EXPECT_EQ(CastOf(masters, dither, first), want);
        EXPECT_EQ(CastOf(masters, dither, first, /*lead=*/1), want);
      }
    }
  }
}

TEST(CastKernel, CastsAPartOfATensorAsThatPartOfTheWhole) {
  const std::vector<float> masters = Masters(600);
  const std::vector<uint16_t> whole = CastOf(masters, true, 0);
  EXPECT_EQ(CastOf({masters.begin() + 201, masters.end()}, true, 201),
            std::vector<uint16_t>(whole.begin() + 201, whole.end()));
}

}  // namespace
}  // namespace tandem::trainer::cuda
