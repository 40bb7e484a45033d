#include "trainer/data/held_out.h"

#include <cstdint>

#include "xxhash.h"

namespace tandem::trainer {

bool IsHeldOut(std::string_view identity, double share) {
  const uint64_t hash = XXH3_64bits(identity.data(), identity.size());
  // 53 bits are a double without rounding.
  return static_cast<double>(hash >> 11) * 0x1p-53 < share;
}

}  // namespace tandem::trainer
