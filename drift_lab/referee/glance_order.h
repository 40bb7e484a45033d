// GlanceOrder: which suspect the referee looks at next. Time may end the search, so that one strength
// of every cause comes first, and other strengths of a cause as soon as one does well. Used by
// judge.cc. Pure.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "drift_lab/referee/suspects.h"

namespace tandem::drift {

class GlanceOrder {
 public:
  explicit GlanceOrder(std::span<const Suspect> suspects);  // which must outlive this

  const Suspect* Next();  // null: there is none left

  // How well the suspect did that Next returned last, 1 at best; NaN: it did nothing.
  void Report(double well);

  size_t num_left() const;

 private:
  // Strengths of one cause. Every rounding and every edit of the prompt stands for itself.
  struct Family {
    std::vector<const Suspect*> members;
    size_t next = 0;
    double well = 0;  // the best so far
    bool has_more() const { return next < members.size(); }
  };
  std::vector<Family> families_;
  size_t last_ = 0;
};

}  // namespace tandem::drift
