#include "drift_lab/phase/predictors.h"

#include <algorithm>
#include <array>
#include <cmath>

namespace tandem::drift {
namespace {

constexpr std::array<const char*, kNumPredictors> kPredictorNames = {
    "reward fall",
    "k3",
    "1 - ESS",
    "p99.9 abs(delta)",
    "abs(mean w - 1)",
    "share of w outside [.5, 2]",
    "dropped by the method",
    "kept, negative minus positive",
    "gradient norm, fall",
    "gradient norm, spike",
    "entropy, rise",
    "entropy, fall",
    "largest logit"};

double RowValue(Predictor predictor, const TraceRow& row) {
  switch (predictor) {
    case Predictor::kRewardFall:
      return At(row, Watched::kReward);
    case Predictor::kK3:
      return At(row, Watched::kK3);
    case Predictor::kEssLoss:
      return 1 - At(row, Watched::kEss);
    case Predictor::kTail:
      return At(row, Watched::kTail);
    case Predictor::kMeanWeight:
      return std::abs(At(row, Watched::kMeanW) - 1);
    case Predictor::kOutside:
      return At(row, Watched::kOutside);
    case Predictor::kDropped:
      return At(row, Watched::kDropped);
    case Predictor::kSignImbalance:
      return At(row, Watched::kKeptNegative) - At(row, Watched::kKeptPositive);
    case Predictor::kGradientFall:
    case Predictor::kGradientSpike:
      return At(row, Watched::kGradientNorm);
    case Predictor::kEntropyRise:
    case Predictor::kEntropyFall:
      return At(row, Watched::kEntropy);
    case Predictor::kMaxLogit:
      return At(row, Watched::kMaxLogit);
  }
  return 0;
}

// Trailing means over kSmoothedRows.
std::vector<double> Smoothed(Predictor predictor, std::span<const TraceRow> trace) {
  std::vector<double> values;
  for (size_t row = 0; row < trace.size(); ++row) {
    double sum = 0, count = 0;
    for (size_t r = row < kSmoothedRows ? 0 : row - kSmoothedRows + 1; r <= row; ++r) {
      const double value = RowValue(predictor, trace[r]);
      if (std::isnan(value)) continue;
      sum += value;
      ++count;
    }
    values.push_back(count > 0 ? sum / count : 0);
  }
  return values;
}

// log(value / value at the end of the first rows). The quotient is at least 1e-6.
std::vector<double> LogOfFirst(const std::vector<double>& values, double sign) {
  std::vector<double> out(values.size(), 0);
  for (size_t row = kSmoothedRows; row < values.size(); ++row) {
    const double first = values[kSmoothedRows - 1];
    if (first <= 0) continue;
    out[row] = sign * std::log(std::max(values[row] / first, 1e-6));
  }
  return out;
}

}  // namespace

const char* PredictorName(Predictor predictor) {
  return kPredictorNames[static_cast<size_t>(predictor)];
}

std::vector<double> PredictorValues(Predictor predictor, std::span<const TraceRow> trace) {
  std::vector<double> values = Smoothed(predictor, trace);
  switch (predictor) {
    case Predictor::kRewardFall: {
      double highest = 0;
      for (double& value : values) {
        highest = std::max(highest, value);
        value = highest - value;
      }
      return values;
    }
    case Predictor::kGradientSpike:
    case Predictor::kEntropyRise:
      return LogOfFirst(values, 1);
    case Predictor::kGradientFall:
    case Predictor::kEntropyFall:
      return LogOfFirst(values, -1);
    default:
      return values;
  }
}

}  // namespace tandem::drift
