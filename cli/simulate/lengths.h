// LengthDistribution: how many tokens completions have, as one text: fixed:N, uniform:LOW-HIGH,
// lognormal:MEAN:SIGMA:LIMIT (mean before the limit cuts, sigma of the logarithm). Pure.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"

namespace tandem::simulate {

class LengthDistribution {
 public:
  //   INVALID_ARGUMENT  another form, or a number out of range (named)
  static absl::StatusOr<LengthDistribution> Parse(const std::string& text);

  // Of one completion: a function of its arguments alone, at least 1.
  int64_t Draw(uint64_t seed, int64_t group, int64_t member) const;

 private:
  enum class Kind { kFixed, kUniform, kLogNormal };
  Kind kind_ = Kind::kFixed;
  double a_ = 1, b_ = 0;  // tokens; low and high; mu and sigma
  int64_t limit_ = 0;
};

}  // namespace tandem::simulate
