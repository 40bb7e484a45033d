// method_driver: evaluates corrections and objectives on given numbers, for
// correction_parity_test.py. It reads a JSON object with "settings" (of NamedMethod) and the arrays
// "behaviour", "proximal", "target", "advantages", "mask" and "completion" from stdin, and writes
// the result of EvaluateMethod.
#include <nlohmann/json.hpp>

#include <cstdio>
#include <iostream>
#include <limits>
#include <string>
#include <vector>

#include "common/base/status_macros.h"
#include "common/offpolicy/correction_method.h"

namespace tandem::offpolicy {
namespace {

using nlohmann::json;

std::vector<double> Numbers(const json& array) {
  std::vector<double> numbers;
  for (const json& value : array) {
    numbers.push_back(value.is_null() ? std::numeric_limits<double>::quiet_NaN()
                                      : value.get<double>());
  }
  return numbers;
}

absl::Status Run(const json& input) {
  const std::vector<double> behaviour = Numbers(input["behaviour"]),
                            proximal = Numbers(input["proximal"]),
                            target = Numbers(input["target"]),
                            advantages = Numbers(input["advantages"]);
  const auto mask = input["mask"].get<std::vector<uint8_t>>();
  const auto completion = input["completion"].get<std::vector<int64_t>>();
  TANDEM_ASSIGN_OR_RETURN(const MethodOptions options,
                          ParseMethod(input["settings"].get<std::string>()));
  TANDEM_ASSIGN_OR_RETURN(
      const MethodResult result,
      EvaluateMethod({behaviour, proximal, target, advantages, mask, completion}, options));
  const json output = {
      {"weight", result.correction.weight},        {"kept", result.correction.kept},
      {"value", result.objective.value},           {"coefficient", result.coefficient},
      {"denominator", result.denominator},         {"loss", result.loss},
      {"clip_low", result.objective.num_clip_low}, {"clip_high", result.objective.num_clip_high}};
  std::cout << output.dump() << "\n";
  return absl::OkStatus();
}

}  // namespace
}  // namespace tandem::offpolicy

int main() {
  const absl::Status status = tandem::offpolicy::Run(nlohmann::json::parse(std::cin));
  if (status.ok()) return 0;
  std::fprintf(stderr, "%s\n", status.ToString().c_str());
  return 1;
}
