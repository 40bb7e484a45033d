#include "cli/run/problems.h"

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/stable_random.h"

namespace tandem::cli {
namespace {

std::string ProblemLine(int a, int b, bool multiply) {
  return absl::StrCat("{\"messages\":[{\"role\":\"user\",\"content\":\"What is ", a,
                      multiply ? " * " : " + ", b, "? Answer with just the number.\"}],",
                      "\"answer\":\"", multiply ? a * b : a + b, "\"}\n");
}

}  // namespace

ProblemSet MakeProblems(ArithmeticTask task, uint64_t seed) {
  const bool multiply = task == ArithmeticTask::kMultiply;
  const int largest = multiply ? 9 : 20;
  const size_t num_held_out = multiply ? 20 : 32;
  std::vector<std::pair<int, int>> pairs;
  for (int a = 1; a <= largest; ++a) {
    for (int b = 1; b <= largest; ++b) pairs.emplace_back(a, b);
  }
  // A Fisher-Yates shuffle with the output of SplitMix64, which is the same on every platform. The
  // result of std::shuffle is not.
  for (size_t i = pairs.size() - 1; i > 0; --i, seed += 0x9e3779b97f4a7c15u) {
    std::swap(pairs[i], pairs[StableHash({seed}) % (i + 1)]);
  }
  ProblemSet problems;
  for (size_t i = 0; i < pairs.size(); ++i) {
    std::string& part = i < num_held_out ? problems.held_out_jsonl : problems.train_jsonl;
    part += ProblemLine(pairs[i].first, pairs[i].second, multiply);
  }
  return problems;
}

}  // namespace tandem::cli
