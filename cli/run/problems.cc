#include "cli/run/problems.h"

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

namespace tandem::cli {
namespace {

// SplitMix64: a fixed stream on every platform, which std::shuffle does not promise.
class Stream {
 public:
  explicit Stream(uint64_t seed) : state_(seed) {}
  uint64_t Next() {
    state_ += 0x9E3779B97F4A7C15u;
    uint64_t z = state_;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
  }

 private:
  uint64_t state_;
};

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
  Stream stream(seed);
  for (size_t i = pairs.size() - 1; i > 0; --i) {
    std::swap(pairs[i], pairs[stream.Next() % (i + 1)]);
  }
  ProblemSet problems;
  for (size_t i = 0; i < pairs.size(); ++i) {
    std::string& part = i < num_held_out ? problems.held_out_jsonl : problems.train_jsonl;
    part += ProblemLine(pairs[i].first, pairs[i].second, multiply);
  }
  return problems;
}

}  // namespace tandem::cli
