// Predictors: metrics that a dashboard could watch to see a collapse coming. A value uses the run's
// trace up to its step and nothing later. A larger value is closer to an alarm.
#pragma once

#include <span>
#include <vector>

#include "drift_lab/phase/toy/trace.h"

namespace tandem::drift {

enum class Predictor {
  kRewardFall,  // highest mean reward so far minus now; a useful drift metric is earlier than it
  kK3,
  kEssLoss,        // 1 - ESS
  kTail,           // p99.9 of abs(log w)
  kMeanWeight,     // abs(mean w - 1)
  kOutside,        // share of w outside [.5, 2]
  kDropped,        // share of tokens that the method drops
  kSignImbalance,  // kept share of advantage < 0 minus that of advantage > 0
  kGradientFall,   // log of (first rows' gradient norm / now)
  kGradientSpike,  // minus that
  kEntropyRise,    // log of (entropy now / in the first rows)
  kEntropyFall,    // minus that
  kMaxLogit,       // largest logit
};
inline constexpr int kNumPredictors = static_cast<int>(Predictor::kMaxLogit) + 1;
const char* PredictorName(Predictor predictor);

inline constexpr int kSmoothedRows = 2;  // a value is the mean of its row and the one before

// One value per row of the trace. "First rows" are the first kSmoothedRows; values relative to them
// are 0 there. Rows with NaN (no token of that sign) are left out of a mean; a mean of none is 0.
std::vector<double> PredictorValues(Predictor predictor, std::span<const TraceRow> trace);

}  // namespace tandem::drift
