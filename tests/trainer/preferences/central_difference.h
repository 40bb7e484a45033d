// CentralDifference: a derivative from two values of a function, which tests compare the
// written-out derivatives of losses with.
#pragma once

#include <vector>

namespace tandem::testing {

// The derivative of function(numbers) by numbers[i], with an error of about 1e-9 where third
// derivatives are about 1.
template <typename Function>
double CentralDifference(const Function& function, std::vector<double> numbers, size_t i) {
  constexpr double kStep = 1e-5;
  const double at = numbers[i];
  numbers[i] = at + kStep;
  const double above = function(numbers);
  numbers[i] = at - kStep;
  return (above - function(numbers)) / (2 * kStep);
}

}  // namespace tandem::testing
