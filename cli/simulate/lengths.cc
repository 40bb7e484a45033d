#include "cli/simulate/lengths.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <string_view>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "rollout_server/engine/sampling/philox.h"

namespace tandem::simulate {

absl::StatusOr<LengthDistribution> LengthDistribution::Parse(const std::string& text) {
  const auto refused = [&] {
    return absl::InvalidArgumentError(absl::StrCat(
        "'", text,
        "', want fixed:N, uniform:LOW-HIGH or lognormal:MEAN:SIGMA:LIMIT, lengths of 1 "
        "to 1000000 tokens"));
  };
  const std::vector<std::string> parts = absl::StrSplit(text, absl::ByAnyChar(":-"));
  std::vector<double> numbers;
  for (size_t i = 1; i < parts.size(); ++i) {
    double number = 0;
    if (!absl::SimpleAtod(parts[i], &number) || !std::isfinite(number)) return refused();
    numbers.push_back(number);
  }
  const auto is_length = [](double n) { return n >= 1 && n <= 1e6; };
  LengthDistribution out;
  if (parts[0] == "fixed" && numbers.size() == 1 && is_length(numbers[0])) {
    out.a_ = numbers[0];
  } else if (parts[0] == "uniform" && numbers.size() == 2 && is_length(numbers[0]) &&
             is_length(numbers[1]) && numbers[0] <= numbers[1]) {
    out.kind_ = Kind::kUniform;
    out.a_ = numbers[0];
    out.b_ = numbers[1];
  } else if (parts[0] == "lognormal" && numbers.size() == 3 && is_length(numbers[0]) &&
             numbers[1] >= 0 && numbers[1] <= 4 && is_length(numbers[2])) {
    out.kind_ = Kind::kLogNormal;
    out.a_ = std::log(numbers[0]) - numbers[1] * numbers[1] / 2;
    out.b_ = numbers[1];
    out.limit_ = static_cast<int64_t>(numbers[2]);
  } else {
    return refused();
  }
  return out;
}

int64_t LengthDistribution::Draw(uint64_t seed, int64_t group, int64_t member) const {
  const rollout::PhiloxCounter bits =
      rollout::Philox4x32({static_cast<uint32_t>(member), static_cast<uint32_t>(group),
                           static_cast<uint32_t>(group >> 32), 0},
                          {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)});
  const double u = rollout::UniformFromBits(static_cast<uint64_t>(bits[0]) << 32 | bits[1]);
  const double v = rollout::UniformFromBits(static_cast<uint64_t>(bits[2]) << 32 | bits[3]);
  switch (kind_) {
    case Kind::kFixed:
      return static_cast<int64_t>(a_);
    case Kind::kUniform:
      return static_cast<int64_t>(a_ + u * (b_ - a_ + 1));
    case Kind::kLogNormal:
      break;
  }
  // Box and Muller.
  const double normal = std::sqrt(-2 * std::log(u)) * std::cos(2 * std::numbers::pi * v);
  return std::clamp<int64_t>(std::llround(std::exp(a_ + b_ * normal)), 1, limit_);
}

}  // namespace tandem::simulate
