// RandomNormal: standard normal numbers that are the same everywhere: Box and Muller's transform of
// a generator whose output the standard fixes, which std::normal_distribution's is not.
// Thread-compatible.
#ifndef TANDEM_COMMON_BASE_RANDOM_NORMAL_H_
#define TANDEM_COMMON_BASE_RANDOM_NORMAL_H_

#include <cstdint>
#include <random>

namespace tandem {

class RandomNormal {
 public:
  explicit RandomNormal(uint64_t seed) : generator_(seed) {}
  float Next();

 private:
  std::mt19937_64 generator_;
  bool has_spare_ = false;
  float spare_ = 0;
};

}  // namespace tandem

#endif  // TANDEM_COMMON_BASE_RANDOM_NORMAL_H_
