// RopeSettings: the rotary position embedding (RoPE, Su et al. 2021) that a config.json asks for,
// and its frequencies. Used by ModelConfig and by both forwards. Pure.
#pragma once

#include <cstdint>
#include <vector>

namespace tandem {

// The "rope_type" of transformers.
enum class RopeType {
  kDefault,
  kLinear,    // every frequency divided by `factor`
  kLlama3,    // low frequencies divided by `factor`
  kYarn,      // a ramp between both (Peng et al. 2023, arXiv 2309.00071)
  kLongRope,  // a factor for each frequency (Ding et al. 2024, arXiv 2402.13753)
};

struct RopeSettings {
  RopeType type = RopeType::kDefault;
  double theta = 10000;
  // Share of a head's elements that are rotated, in (0, 1]: the first ones.
  double partial_rotary_factor = 1;
  double factor = 1;
  int64_t original_max_position_embeddings = 0;      // of pretraining; llama3, yarn, longrope
  int64_t stated_max_position_embeddings = 0;        // longrope: that of config.json
  double low_freq_factor = 1, high_freq_factor = 1;  // llama3
  double beta_fast = 32, beta_slow = 1;              // yarn
  bool truncate = true;                              // yarn: ramp ends are integers
  std::vector<double> short_factor, long_factor;     // longrope, [rotated / 2]
  double attention_factor = 1;  // cosines and sines are multiplied by it; yarn, longrope

  friend bool operator==(const RopeSettings&, const RopeSettings&) = default;
};

// The elements of a head of `head_dim` that are rotated: the first ones.
int64_t RotatedElements(const RopeSettings& settings, int64_t head_dim);

// Frequencies of one embedding: position p turns pair i by the angle p * inverse_frequencies[i].
struct RotaryEmbedding {
  std::vector<float> inverse_frequencies;  // [rotated elements / 2]
  float scale = 1;                         // of cosines and sines

  int64_t rotated() const { return 2 * static_cast<int64_t>(inverse_frequencies.size()); }
};

// Computed in float32 in the order of transformers, since an angle is a frequency times a position
// of up to 10^5, which magnifies differences in the last bits. LongRoPE takes its short factors:
// its reader (config/rope_fields.h) ends the context where the long ones begin.
RotaryEmbedding MakeRotaryEmbedding(const RopeSettings& settings, int64_t head_dim);

}  // namespace tandem
