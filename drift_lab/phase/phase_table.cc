#include "drift_lab/phase/phase_table.h"

#include <algorithm>
#include <cmath>

namespace tandem::drift {
namespace {

// The mean of the values that are not NaN.
class Mean {
 public:
  void Add(double value) {
    if (std::isnan(value)) return;
    sum_ += value;
    ++count_;
  }
  double value() const { return sum_ / count_; }  // NaN without values

 private:
  double sum_ = 0;
  double count_ = 0;
};

PhaseEntry MakeEntry(const Cell& cell, Method method, int num_seeds, const RunStore& store) {
  PhaseEntry entry{.cell = cell, .method = method, .worst = 1};
  std::vector<double> scores;
  Mean start, max_logit, kept_positive, kept_negative;
  for (const PlannedRun& planned : Plan({&cell, 1}, {&method, 1}, num_seeds)) {
    const RunResult* run = store.Find(planned);
    if (run == nullptr) continue;
    scores.push_back(run->score);
    entry.worst = std::min(entry.worst, run->score);
    entry.num_halved += run->halved_at >= 0;
    start.Add(run->start);
    double largest = -INFINITY;
    for (const TraceRow& row : run->trace) largest = std::max(largest, At(row, Watched::kMaxLogit));
    max_logit.Add(largest);
    kept_positive.Add(At(run->trace.front(), Watched::kKeptPositive));
    kept_negative.Add(At(run->trace.front(), Watched::kKeptNegative));
  }
  entry.num_seeds = static_cast<int>(scores.size());
  entry.score = StudentInterval(scores);
  entry.start = start.value();
  entry.max_logit = max_logit.value();
  entry.kept_positive = kept_positive.value();
  entry.kept_negative = kept_negative.value();
  return entry;
}

}  // namespace

std::vector<PhaseEntry> MakePhaseTable(std::span<const Cell> cells, std::span<const Method> methods,
                                       int num_seeds, const RunStore& store) {
  std::vector<PhaseEntry> table;
  for (const Cell& cell : cells) {
    for (const Method method : methods) {
      PhaseEntry entry = MakeEntry(cell, method, num_seeds, store);
      if (entry.num_seeds > 0) table.push_back(std::move(entry));
    }
  }
  return table;
}

}  // namespace tandem::drift
