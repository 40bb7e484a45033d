// RandomNormal: standard normal numbers that are the same on every platform. It applies the
// Box-Muller transform to a generator whose output the C++ standard fixes; the output of
// std::normal_distribution is not fixed. Thread-compatible.
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
