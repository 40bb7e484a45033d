#include "common/base/stable_random.h"

#include <cmath>
#include <numbers>

namespace tandem {

float RandomNormal::Next() {
  if (has_spare_) {
    has_spare_ = false;
    return spare_;
  }
  const double u = (static_cast<double>(generator_() >> 11) + 0.5) * 0x1p-53;
  const double v = static_cast<double>(generator_() >> 11) * 0x1p-53;
  const double radius = std::sqrt(-2 * std::log(u));
  spare_ = static_cast<float>(radius * std::sin(2 * std::numbers::pi * v));
  has_spare_ = true;
  return static_cast<float>(radius * std::cos(2 * std::numbers::pi * v));
}

}  // namespace tandem
