// ContextTable: a policy's evaluations by context, each made when first asked for. A batch of 1 024
// tokens visits a few hundred contexts, and most of them again and again, so a train step costs
// what its different contexts cost. Thread-compatible.
#pragma once

#include <cstdint>
#include <vector>

#include "drift_lab/phase/toy/policy.h"

namespace tandem::drift {

class ContextTable {
 public:
  explicit ContextTable(int length)
      : length_(length),
        evaluations_(static_cast<size_t>(NumContexts(length))),
        made_for_(evaluations_.size(), 0) {}

  int length() const { return length_; }

  // Forgets everything; what is asked for from now on is of `parameters`, which must outlive the
  // answers and stay as they are.
  void Use(const Parameters& parameters) {
    parameters_ = &parameters;
    ++use_;
  }

  const Parameters& parameters() const { return *parameters_; }

  // Valid until Use.
  const Evaluation& At(int context_index) {
    Evaluation& evaluation = evaluations_[static_cast<size_t>(context_index)];
    if (made_for_[static_cast<size_t>(context_index)] != use_) {
      Evaluate(*parameters_, length_, ContextOf(context_index), evaluation);
      made_for_[static_cast<size_t>(context_index)] = use_;
    }
    return evaluation;
  }

 private:
  const int length_;
  std::vector<Evaluation> evaluations_;
  std::vector<uint64_t> made_for_;  // the use an evaluation belongs to
  uint64_t use_ = 0;
  const Parameters* parameters_ = nullptr;
};

}  // namespace tandem::drift
