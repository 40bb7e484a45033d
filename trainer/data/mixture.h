// Mixture: which of several data sets the prompt at each place of a run comes from. Pure: a function
// of the weights and the place, so that a resumed run needs no state but its cursor.
//
// The order is smooth weighted round robin (that of nginx): each place gives every data set credit of
// its weight, takes the one with the most credit (the first of equals), and charges it the sum. After
// any number of places every data set has been taken its share of them, off by less than one, and
// they take turns as evenly as the weights allow. Weights are rounded to a billionth of their sum, and
// all arithmetic is in integers, so that every machine has the same order.
#pragma once

#include <cstdint>
#include <vector>

namespace tandem::trainer {

// Remembers where it was: places that are asked for in rising order cost one step each, and an
// earlier one starts anew. Thread-compatible.
class Mixture {
 public:
  struct Draw {
    size_t source = 0;  // index of the data set
    int64_t count = 0;  // how often it was drawn before
  };

  // `weights` are over 0 and finite; at least one.
  explicit Mixture(const std::vector<double>& weights);

  // The draw at `place`, from 0.
  Draw At(int64_t place);

  // The weights as integers, for digests.
  const std::vector<int64_t>& units() const { return units_; }

 private:
  void Step();

  std::vector<int64_t> units_;
  int64_t total_ = 0;
  std::vector<int64_t> credit_, counts_;  // of the draws before next_place_
  int64_t next_place_ = 0;
  Draw last_;  // at next_place_ - 1
};

}  // namespace tandem::trainer
