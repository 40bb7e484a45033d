// Injectors: the faults on which the lab is calibrated. Each sets one fault parameter, whose
// strength is counted in multiples of a natural size, and has the cause that the lab must name.
// There are also unmodelled faults, for which the lab must name no cause. Pure.
#pragma once

#include <span>
#include <string_view>
#include <vector>

#include "common/statistics/cluster_bootstrap.h"
#include "drift_lab/ablation/verdict.h"
#include "drift_lab/calibration/subject.h"
#include "drift_lab/hypotheses/part.h"

namespace tandem::drift {

// How the lab finds the strength of a cause.
enum class ParameterKind {
  kEstimated,   // from the sampled tokens: with an interval, which may miss the truth
  kIdentified,  // by a replay that gives the record back: right or wrong, without sampling error
  kSwitch,      // the cause has no strength
};

// How a parameter depends on its natural size n and the strength s.
enum class Scale {
  kTimes,     // n s
  kBelowOne,  // 1 - n s
  kDivided,   // n / s
  kBits,      // n - log2(s): a rounding error doubles with every bit less
};

struct Injector {
  const char* name;
  const char* parameter;  // the fault parameter and its natural size, for people
  Part part;              // the cause that it must be named
  ParameterKind kind;
  Scale scale = Scale::kTimes;
  double natural = 1;
  void (*set)(double value, Fault& fault);  // sets the parameter to a value of it
  std::vector<double> strengths = {0.25, 0.5, 1, 2};

  void Set(double strength, Fault& fault) const;  // the value of that strength
  double StrengthOfValue(double value) const;     // the inverse; monotone
};
std::span<const Injector> AllInjectors();
const Injector* InjectorNamed(std::string_view name);  // null: none

// Two faults at once, both at natural size.
struct InjectorPair {
  const char *first, *second;
};
std::span<const InjectorPair> AllPairs();

struct UnmodelledFault {
  const char *name, *what;
  Unmodelled kind;
  double amount;
};
std::span<const UnmodelledFault> AllUnmodelled();

// True if an injector makes `cause` (a PartName).
bool IsInjectable(std::string_view cause);

// The strength of the parameter `value` in natural sizes of `injector`, with its interval if it has
// one.
offpolicy::Interval StrengthOf(const Injector& injector, const offpolicy::Interval& value);

}  // namespace tandem::drift
