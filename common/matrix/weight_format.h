// WeightFormat: the number format in which a matrix of weights is held. Pure.
//
// Quantisation is symmetric and rounds to nearest even, and needs no calibration data (Dettmers et
// al. 2022, "LLM.int8()"; Micikevicius et al. 2022, "FP8 Formats for Deep Learning"; int4 in groups
// as in Frantar et al. 2022, "GPTQ", without its error feedback):
//
//   kInt8       integers in [-127, 127], one fp32 scale per output feature: max |w| / 127
//   kFp8E4m3    OCP e4m3 values up to 448, one fp32 scale per output feature: max |w| / 448
//   kInt4Group  integers in [-7, 7], one bf16 scale per output feature and `group` input features
//               in a row (the last group may be shorter): max |w| / 7, rounded to bf16
//
// The weight that is meant is the stored value times its scale.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace tandem {

enum class WeightScheme { kWide, kInt8, kFp8E4m3, kInt4Group };

inline constexpr std::string_view kWeightSchemeNames[] = {"wide", "int8", "fp8_e4m3", "int4_group"};

constexpr std::string_view WeightSchemeName(WeightScheme scheme) {
  return kWeightSchemeNames[static_cast<size_t>(scheme)];
}

struct WeightFormat {
  WeightScheme scheme = WeightScheme::kWide;  // kWide: as the weights come, fp32 or bf16
  int64_t group = 32;                         // of kInt4Group: 32, 64 or 128

  friend bool operator==(const WeightFormat&, const WeightFormat&) = default;
};

}  // namespace tandem
