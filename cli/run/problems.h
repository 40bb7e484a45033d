// The arithmetic problems of `tandem demo`: products of one-digit numbers, or sums up to 40. Pure:
// the same task and seed give the same lines on every machine.
#pragma once

#include <cstdint>
#include <string>

namespace tandem::cli {

enum class ArithmeticTask {
  kMultiply,  // a * b, 1..9: 81 problems, 20 of them held out
  kAdd,       // a + b, 1..20: 400 problems, 32 of them held out
};

// JSON lines {"messages": [{"role": "user", "content": question}], "answer": "42"}, shuffled by the
// seed. No problem occurs in both parts.
struct ProblemSet {
  std::string train_jsonl;
  std::string held_out_jsonl;
};

ProblemSet MakeProblems(ArithmeticTask task, uint64_t seed);

}  // namespace tandem::cli
