#include "common/model/rope.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace tandem {
namespace {

float Power(const RopeSettings& settings, size_t pair, float rotated) {
  return std::pow(static_cast<float>(settings.theta), static_cast<float>(2 * pair) / rotated);
}

// Divides low frequencies, whose wavelength exceeds the original context, by `factor`, keeps high
// ones, and interpolates between them.
float Llama3Frequency(const RopeSettings& settings, float frequency) {
  const auto context = static_cast<double>(settings.original_max_position_embeddings);
  const auto low_wavelength = static_cast<float>(context / settings.low_freq_factor);
  const auto high_wavelength = static_cast<float>(context / settings.high_freq_factor);
  const auto factor = static_cast<float>(settings.factor);
  const float wavelength = static_cast<float>(2 * std::numbers::pi) / frequency;
  if (wavelength > low_wavelength) return frequency / factor;
  if (wavelength < high_wavelength) return frequency;
  const float smooth =
      (static_cast<float>(context) / wavelength - static_cast<float>(settings.low_freq_factor)) /
      static_cast<float>(settings.high_freq_factor - settings.low_freq_factor);
  return (1.0F - smooth) * frequency / factor + smooth * frequency;
}

// The pairs between which YaRN goes over from the frequencies as they are to those divided by
// `factor`.
struct Ramp {
  double begin = 0, end = 0;

  float At(size_t pair) const {
    const auto from = static_cast<float>(begin);
    const auto length = static_cast<float>((begin == end ? end + 0.001 : end) - begin);
    return std::clamp((static_cast<float>(pair) - from) / length, 0.0F, 1.0F);
  }
};

Ramp YarnRamp(const RopeSettings& settings, double rotated) {
  // The pair that turns so many times within the original context.
  const auto pair_of = [&](double turns) {
    const auto context = static_cast<double>(settings.original_max_position_embeddings);
    return rotated * std::log(context / (turns * 2 * std::numbers::pi)) /
           (2 * std::log(settings.theta));
  };
  double begin = pair_of(settings.beta_fast), end = pair_of(settings.beta_slow);
  if (settings.truncate) {
    begin = std::floor(begin);
    end = std::ceil(end);
  }
  return {std::max(begin, 0.0), std::min(end, rotated - 1)};
}

}  // namespace

int64_t RotatedElements(const RopeSettings& settings, int64_t head_dim) {
  return static_cast<int64_t>(static_cast<double>(head_dim) * settings.partial_rotary_factor);
}

RotaryEmbedding MakeRotaryEmbedding(const RopeSettings& settings, int64_t head_dim) {
  const int64_t rotated = RotatedElements(settings, head_dim);
  const Ramp ramp =
      settings.type == RopeType::kYarn ? YarnRamp(settings, static_cast<double>(rotated)) : Ramp();
  const auto factor = static_cast<float>(settings.factor);
  RotaryEmbedding embedding;
  embedding.inverse_frequencies.resize(static_cast<size_t>(rotated / 2));
  embedding.scale = static_cast<float>(settings.attention_factor);
  for (size_t i = 0; i < embedding.inverse_frequencies.size(); ++i) {
    const float power = Power(settings, i, static_cast<float>(rotated));
    float frequency = 1.0F / power;
    switch (settings.type) {
      case RopeType::kDefault:
        break;
      case RopeType::kLinear:
        frequency /= factor;
        break;
      case RopeType::kLlama3:
        frequency = Llama3Frequency(settings, frequency);
        break;
      case RopeType::kYarn: {
        const float kept = 1.0F - ramp.At(i);
        frequency = 1.0F / (factor * power) * (1.0F - kept) + frequency * kept;
        break;
      }
      case RopeType::kLongRope:
        frequency = 1.0F / (static_cast<float>(settings.short_factor[i]) * power);
        break;
    }
    embedding.inverse_frequencies[i] = frequency;
  }
  return embedding;
}

}  // namespace tandem
